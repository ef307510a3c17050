--- expect: MS0109 nested too deeply
return
--- repeat 300  function() return
1
--- repeat 300  end

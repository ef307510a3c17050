--- expect: MS0109 C stack overflow
return
--- repeat 300  function() return
1
--- repeat 300  end

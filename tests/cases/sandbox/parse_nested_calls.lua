--- expect: MS0109 nested too deeply
return
--- repeat 300  tostring(
1--- repeat 300 )

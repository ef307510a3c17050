--- expect: MS0109 C stack overflow
return
--- repeat 300  tostring(
1--- repeat 300 )

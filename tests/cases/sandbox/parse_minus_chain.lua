--- expect: MS0109 nested too deeply
return
--- repeat 1000  -
1

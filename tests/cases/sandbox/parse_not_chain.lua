--- expect: MS0109 nested too deeply
return
--- repeat 250000  not
1

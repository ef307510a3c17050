--- expect: MS0109 nested too deeply
return 2
--- repeat 100000  ^ 2

--- expect: MS0109 C stack overflow
return
--- repeat 250000  not
1

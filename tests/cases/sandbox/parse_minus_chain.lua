--- expect: MS0109 C stack overflow
return
--- repeat 1000  -
1

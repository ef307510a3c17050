--- expect: MS0109 C stack overflow
return 2
--- repeat 100000  ^ 2

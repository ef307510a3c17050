--- expect: MS0109 C stack overflow
return ""
--- repeat 100000  .. "x"

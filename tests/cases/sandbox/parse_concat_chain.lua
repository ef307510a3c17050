--- expect: MS0109 nested too deeply
return ""
--- repeat 100000  .. "x"

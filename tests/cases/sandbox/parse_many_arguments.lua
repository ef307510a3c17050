--- expect: MS0109 function or expression needs too many registers near '1'
return tostring(1
--- repeat 260 , 1
)

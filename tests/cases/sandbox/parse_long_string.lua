--- expect: MS0110 the file does not return a plan
return "
--- repeat 1000000 x
"

--- expect: MS0110 the file does not return a plan
--- repeat 30000  goto a
::a::

--- expect: MS0109
::top:: goto top

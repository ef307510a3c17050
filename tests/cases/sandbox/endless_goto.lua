--- expect: MS0109 more than 20000000 steps | more than 500 ms
::top:: goto top

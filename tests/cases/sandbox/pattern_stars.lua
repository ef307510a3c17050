--- expect: MS0109 more than 20000000 steps | more than 500 ms
return ("a"):rep(10000):match(("a*"):rep(20) .. "b")

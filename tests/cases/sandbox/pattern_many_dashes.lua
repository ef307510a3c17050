--- expect: MS0109 more than 20000000 steps | more than 500 ms
return ("a"):rep(1000):find((".-"):rep(12) .. "b")

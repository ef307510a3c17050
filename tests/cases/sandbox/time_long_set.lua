--- expect: MS0109 more than 20000000 steps | more than 500 ms
return ("a"):rep(200000):match("[" .. ("b"):rep(50000) .. "a]*")

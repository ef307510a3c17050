--- expect: MS0109 more than 20000000 steps | more than 500 ms
for w in ("a"):rep(10000):gmatch(".-.-.-b") do end

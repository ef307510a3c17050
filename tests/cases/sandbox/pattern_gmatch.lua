--- expect: MS0109
for w in ("a"):rep(10000):gmatch(".-.-.-b") do end

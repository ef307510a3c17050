--- expect: MS0109 more than 20000000 steps | more than 500 ms
while true do for m in (("a"):rep(1000)):gmatch("") do end end

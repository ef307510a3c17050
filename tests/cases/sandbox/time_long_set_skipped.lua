--- expect: MS0109 more than 20000000 steps | more than 500 ms
local set = "[" .. ("b"):rep(50000) .. "]" return ("a"):rep(200000):find(set)

--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("a"):rep(2000) s:find("(.-)(.-)(.-)%3%2%1b")

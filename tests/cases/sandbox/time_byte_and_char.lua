--- expect: MS0109 more than 20000000 steps | more than 500 ms
while true do local s = string.char(string.byte(("x"):rep(200), 1, -1)) end

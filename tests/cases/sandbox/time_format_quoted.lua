--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("\0"):rep(1000000) while true do local q = ("%q"):format(s) end

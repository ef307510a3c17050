--- expect: MS0109 more than 20000000 steps | more than 500 ms
while true do local s = ("%99.99f"):format(1e308) end

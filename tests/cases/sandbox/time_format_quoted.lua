--- expect: MS0108 the result is longer than 1 MiB
local s = ("\0"):rep(1000000) while true do local q = ("%q"):format(s) end

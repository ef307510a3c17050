--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local t, p = {}, ("x"):rep(900) for i = 1, 20000 do t[p .. i] = i end while true do for k in pairs(t) do break end end

--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 50000 do t[i] = i + 0.1 end while true do table.concat(t, ",") end

--- expect: MS0109 more than 20000000 steps | more than 500 ms
local t = {} for i = 1, 200 do t[i] = at("a" .. i, replicated()) end while true do local l = optional(t) end

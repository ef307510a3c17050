--- expect: MS0109 more than 20000000 steps | more than 500 ms
local p = unknown_word while true do p = p.x(1) + 1 end

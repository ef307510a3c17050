--- expect: MS0109
local p = unknown_word while true do p = p.x(1) + 1 end

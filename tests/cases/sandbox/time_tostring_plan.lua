--- expect: MS0109 more than 20000000 steps | more than 500 ms
local p = plan { at("a", colwise {}) } while true do local s = tostring(p) end

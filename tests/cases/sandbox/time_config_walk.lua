--- expect: MS0109 more than 20000000 steps | more than 500 ms
local function walk(t) for k, v in pairs(t) do if type(v) == "table" then walk(v) end end end while true do walk(config) end

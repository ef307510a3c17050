--- expect: MS0109 more than 20000000 steps | more than 500 ms
local s = ("x"):rep(1000000) for i = 1, 4 do s = s .. s end
local list = {} for i = 1, 150 do list[i] = s end
local format = ("%.1s"):rep(150) while true do local t = format:format(table.unpack(list)) end

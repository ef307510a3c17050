--- expect: MS0109 more than 20000000 steps | more than 500 ms
local function text() local s = ("x"):rep(1000000) return s .. s .. s .. s .. s .. s .. s .. s end
local a, b, list = text(), text(), {} for i = 1, 4000 do list[i] = i % 2 == 0 and a or b end table.sort(list)

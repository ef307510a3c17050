--- expect: ok
local list = { [math.maxinteger] = 1 } for e = 62, 0, -1 do list[1 << e] = e end
if #list ~= math.maxinteger then error("the length is another") end
table.insert(list, 1, 1) table.remove(list, math.maxinteger) ipairs(list)(list, math.maxinteger)
return plan {}

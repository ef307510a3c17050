--- expect: MS0108 array too big
local list = {} for e = 60, 0, -1 do list[1 << e] = e end table.sort(list)

--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local t = { table.unpack({}, 1, 200) } while true do t = { t, table.pack(table.unpack({}, 1, 200)) } end

--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local s = colwise {} while true do s = style { kinds = { Linear = s } } end

--- expect: MS0109 more than 48 MiB | more than 500 ms
local s = "0123456789abcdef" while #s < 1073741824 do s = s .. s end

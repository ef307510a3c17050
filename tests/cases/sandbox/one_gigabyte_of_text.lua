--- expect: MS0109
local s = "0123456789abcdef" while #s < 1073741824 do s = s .. s end

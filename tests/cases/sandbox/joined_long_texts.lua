--- expect: MS0109
local s = ("x"):rep(1000000) s = s .. s .. s .. s .. s while true do local t = s .. "x" end

--- expect: MS0109
local s = ("x"):rep(1000000) while true do s:upper() end

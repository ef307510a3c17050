--- expect: MS0109
local i = 0 while true do i = i + 1 local x = config["key" .. i] end

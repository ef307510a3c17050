--- expect: MS0109 the plan has more than 100 mistakes
local i = 0 while true do i = i + 1 local x = config["key" .. i] end

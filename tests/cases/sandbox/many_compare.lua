--- expect: MS0109
local s, t = ("x"):rep(1000000) .. "a", ("x"):rep(1000000) .. "b" while true do local less = s < t end

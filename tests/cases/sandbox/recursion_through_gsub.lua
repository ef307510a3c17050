--- expect: MS0109 the plan calls functions too deeply
local function f() return (("a"):gsub("a", f)) end f()

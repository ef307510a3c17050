--- expect: MS0109
local function f() return (("a"):gsub("a", f)) end f()

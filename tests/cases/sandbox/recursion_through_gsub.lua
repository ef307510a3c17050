--- expect: MS0109 function calls are nested too deeply
local function f() return (("a"):gsub("a", f)) end f()

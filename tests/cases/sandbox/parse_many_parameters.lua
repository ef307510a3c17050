--- expect: MS0109 too many local variables (limit is 200) in function at line 2 near ','
local function f(a
--- repeat 300 , a
) end

--- expect: MS0109 more than 48 MiB | more than 20000000 steps | more than 500 ms
local f = function() end while true do f = (function(h) return function() return h end end)(f) end

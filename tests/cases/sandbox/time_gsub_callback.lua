--- expect: MS0109 more than 20000000 steps | more than 500 ms
while true do local s = ("abc"):gsub("%w", function(c) return c end) end

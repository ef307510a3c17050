local t = { [{}] = 1 }
for k in pairs(t) do divides(1, k) end
return plan {}

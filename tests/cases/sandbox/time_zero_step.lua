--- expect: MS0108 step is zero
for i = 1, 10, 0 do end

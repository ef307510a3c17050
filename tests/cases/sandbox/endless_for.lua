--- expect: MS0109
for i = 1, math.maxinteger do end

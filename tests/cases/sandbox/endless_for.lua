--- expect: MS0109 more than 20000000 steps | more than 500 ms
for i = 1, math.maxinteger do end

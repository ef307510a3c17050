--- expect: MS0109 more than 20000000 steps | more than 500 ms
for i = 0, 1e308, 1e-300 do end

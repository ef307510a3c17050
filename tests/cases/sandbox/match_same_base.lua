--- expect: MS0109 the plan has more than 10000 rules | more than 20000000 steps | more than 500 ms
local p = extends "llama" local t = {} for i = 1, 10000 do t[i] = p end return plan { t }

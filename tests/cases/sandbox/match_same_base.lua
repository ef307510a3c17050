--- expect: MS0109 the plan has more than 10000 rules
local p = extends "llama" local t = {} for i = 1, 10000 do t[i] = p end return plan { t }

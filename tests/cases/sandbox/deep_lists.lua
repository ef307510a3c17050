--- expect: MS0108 plan: lists nested more than 32 deep
local t = {} for i = 1, 1000 do t = { t } end return plan { t }

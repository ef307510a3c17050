--- expect: MS0108 plan: lists are nested more than 32 levels deep
local t = {} for i = 1, 1000 do t = { t } end return plan { t }

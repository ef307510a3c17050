--- model: yes
-- false is passed over; a rule for what is not there is not made.
return plan { model:has("score") and at("score", colwise {}), at("lm_head", colwise { output = replicate, input = 1 }) }

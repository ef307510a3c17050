--- expect: MS0305 parameter 'weight' of 'lm_head': a packed part cannot have 9223372036854775807 elements
return plan { at("lm_head", style { params = { weight = packed(0, { math.maxinteger, math.maxinteger, 2 }) } }) }

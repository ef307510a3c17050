--- expect: MS0311 parameter 'weight' of 'lm_head': owner 9223372036854775807 is not one of the 2 ranks of the axis
return plan { at("lm_head", style { params = { weight = shard(0, { owner = math.maxinteger }) } }) }

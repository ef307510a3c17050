--- expect: MS0311 parameter 'weight' of 'lm_head': no rank 9223372036854775807 among 2 on the axis
return plan { at("lm_head", style { params = { weight = shard(0, { owner = math.maxinteger }) } }) }

--- expect: MS0304 parameter 'weight' of 'lm_head': a dim of 331 elements is not divisible into 9223372036854775807
return plan { at("lm_head", colwise { heads = math.maxinteger }) }

--- expect: MS0301 there is no redistribution from shared_last(9223372036854775807) to replicate (input 0 of style 'custom
return plan { at("lm_head", style { inputs = { { shared_last(math.maxinteger), replicate } } }) }

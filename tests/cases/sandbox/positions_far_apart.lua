--- expect: MS0107
return plan { at("x", style { inputs = { [1000000000] = { replicate, shared } } }) }

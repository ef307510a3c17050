--- expect: MS0107 style: 'inputs' must have at most 64 positions, got a table
return plan { at("x", style { inputs = { [1000000000] = { replicate, shared } } }) }

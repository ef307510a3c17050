--- expect: MS0107 style: 'inputs' has more than 64 positions, got a table
return plan { at("x", style { inputs = { [1000000000] = { replicate, shared } } }) }

--- expect: MS0201 it has 1000000 bytes; at most 4096 are read
return plan { at(("x"):rep(1000000), colwise {}) }

--- expect: MS0201 it has 1000000 bytes; the maximum is 4096
return plan { at(("x"):rep(1000000), colwise {}) }

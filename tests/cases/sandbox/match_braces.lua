--- expect: MS0202 matches no module
return plan { at(("{a,b,c,d}"):rep(40), colwise {}) }

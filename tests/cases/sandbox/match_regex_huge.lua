--- expect: MS0201 it has 12000 bytes; at most 4096 are read
return plan { at(re(("(a|b)*"):rep(2000)), colwise {}) }

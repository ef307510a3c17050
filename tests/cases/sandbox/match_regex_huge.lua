--- expect: MS0201 it has 12000 bytes; the maximum is 4096
return plan { at(re(("(a|b)*"):rep(2000)), colwise {}) }

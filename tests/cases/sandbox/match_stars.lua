--- expect: MS0201 '**' stands for whole components and must be alone between dots (at character 1)
return plan { at(("*"):rep(2000), colwise {}) }

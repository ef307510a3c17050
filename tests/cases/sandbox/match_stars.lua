--- expect: MS0201 '**' matches full components and must be alone between dots (at character 1)
return plan { at(("*"):rep(2000), colwise {}) }

--- expect: MS0201 the alternatives of the braces take more than 4 MiB (at character 1)
return plan { at(("{0..4095}"):rep(5), colwise {}) }

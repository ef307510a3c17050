--- expect: MS0201 RE2: invalid repetition size: {1,100}
return plan { at(re[[((((a{1,100}){1,100}){1,100}){1,100}){1,100}]], colwise {}) }

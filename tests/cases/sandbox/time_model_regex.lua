--- expect: MS0201 pattern '((a{1,1000}){1,1000}){1,1000}': RE2: invalid repetition size: {1,1000}
return plan { #model:find(re[[((a{1,1000}){1,1000}){1,1000}]]) }

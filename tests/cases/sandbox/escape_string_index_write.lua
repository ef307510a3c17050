--- expect: MS0108 attempt to index a string value (constant '')
("").rep = nil
return plan {}

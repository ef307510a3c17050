--- expect: MS0108 attempt to index a number value
return plan { (1).x }

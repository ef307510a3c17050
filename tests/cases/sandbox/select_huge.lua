--- expect: ok
return plan { select("#", 1, 2) == 2 and select(-1, 1, divides(1, 1)) }

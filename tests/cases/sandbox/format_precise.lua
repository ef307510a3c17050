--- expect: ok
return plan { #string.format("%99.99f", 1e308) == 409 and divides(1, 1) or divides(2, 1) }

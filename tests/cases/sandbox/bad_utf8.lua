--- expect: ok
return plan { divides(1, #"ÿþ") }

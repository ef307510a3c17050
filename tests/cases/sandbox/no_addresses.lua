--- expect: ok
return plan { tostring({}) == "table" and tostring(plan) == "function" and divides(1, 1) or divides(2, 1) }

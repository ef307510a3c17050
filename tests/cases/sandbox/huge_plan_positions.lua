--- expect: ok
return plan { [math.maxinteger] = at("x", colwise {}) }

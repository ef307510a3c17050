--- expect: ok
return plan { [math.maxinteger] = default(replicated()) }

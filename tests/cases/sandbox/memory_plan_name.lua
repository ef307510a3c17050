--- expect: ok
return plan { name = ("x"):rep(1000000), default(replicated()) }

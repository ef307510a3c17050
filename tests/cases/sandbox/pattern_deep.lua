--- expect: MS0108
return ("a"):rep(1000):match(("(a)"):rep(300))

--- expect: MS0108 too many captures
return ("a"):rep(1000):match(("(a)"):rep(300))

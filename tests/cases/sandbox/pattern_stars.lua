--- expect: MS0109
return ("a"):rep(10000):match(("a*"):rep(20) .. "b")

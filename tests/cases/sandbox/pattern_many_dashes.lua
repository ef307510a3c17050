--- expect: MS0109
return ("a"):rep(1000):find((".-"):rep(12) .. "b")

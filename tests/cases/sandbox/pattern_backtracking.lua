--- expect: MS0109
return ("a"):rep(100000):find(".-.-.-b")

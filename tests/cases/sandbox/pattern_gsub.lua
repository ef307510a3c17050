--- expect: MS0109
return (("a"):rep(10000):gsub(".-.-b", ""))

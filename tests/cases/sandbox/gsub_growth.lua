--- expect: MS0108
return (("a"):rep(1000):gsub("a", ("b"):rep(100000)))

--- expect: MS0108 string.gsub: the result is longer than 1 MiB
return (("a"):rep(1000):gsub("a", ("b"):rep(100000)))

--- expect: MS0108 xxx
error(("x"):rep(1000000):rep(1))

--- expect: MS0108
error()

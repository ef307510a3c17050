--- expect: MS0108
return string.format("%*d", 1000, 1)

--- expect: MS0108
return string.format("%1000d", 1)

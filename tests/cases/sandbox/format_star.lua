--- expect: MS0108 invalid conversion '%*' to 'format'
return string.format("%*d", 1000, 1)

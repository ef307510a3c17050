--- expect: MS0108 invalid format (width or precision longer than two digits)
return string.format("%1000d", 1)

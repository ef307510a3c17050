--- expect: MS0108
return string.format("%p", {})

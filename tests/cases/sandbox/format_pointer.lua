--- expect: MS0108 invalid conversion '%p' to 'format'
return string.format("%p", {})

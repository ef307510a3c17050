local rules = {
  a = 1
  b = 2,
}
return rules

--- expect: MS0115
string.rep = nil
return plan {}

--- expect: MS0115 'string' cannot be changed: 'rep' is set here
string.rep = nil
return plan {}

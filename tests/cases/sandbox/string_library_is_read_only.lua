--- expect: MS0115 'string' is read-only: 'rep' cannot be assigned
string.rep = nil
return plan {}

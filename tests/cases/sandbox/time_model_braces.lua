--- expect: MS0107 plan: entry 1 must be a rule, a list of rules, a section, extends, default, divides or fits, go
return plan { #model:find(("{a,b}"):rep(64)) }

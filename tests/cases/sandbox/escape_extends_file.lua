--- expect: MS0112 there is no plan '/etc/passwd'
return plan { extends "/etc/passwd" }

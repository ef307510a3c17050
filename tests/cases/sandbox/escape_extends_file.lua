--- expect: MS0112 no plan '/etc/passwd'
return plan { extends "/etc/passwd" }

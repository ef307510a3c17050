--- expect: MS0112 there is no plan '/dev/zero'
return plan { extends "/dev/zero" }

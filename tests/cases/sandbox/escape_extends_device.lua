--- expect: MS0112 no plan '/dev/zero'
return plan { extends "/dev/zero" }

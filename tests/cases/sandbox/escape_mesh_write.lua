--- expect: MS0115 'mesh' cannot be changed
mesh.tp = 1000000
return plan {}

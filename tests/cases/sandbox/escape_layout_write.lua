--- expect: MS0108 attempt to index a layout value (global 'replicate')
replicate.kind = 1
return plan {}

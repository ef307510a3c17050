--- expect: MS0108 attempt to index a layout value (global 'replicate')
return plan { replicate.__gc }

--- expect: MS0108 the plan raised a nil as an error
error()

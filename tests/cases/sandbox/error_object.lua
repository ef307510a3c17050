--- expect: MS0108 the plan raised a table as an error
error({ code = 1 })

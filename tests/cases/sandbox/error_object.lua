--- expect: MS0108
error({ code = 1 })

--- expect: MS0108
return table.unpack({}, 1, 1e8 // 1 | 0)

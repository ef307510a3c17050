--- expect: MS0108 too many results to unpack
return table.unpack({}, 1, 1e8 // 1 | 0)

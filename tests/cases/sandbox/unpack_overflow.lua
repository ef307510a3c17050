--- expect: MS0108 too many results to unpack
return table.unpack({}, math.mininteger, math.maxinteger)

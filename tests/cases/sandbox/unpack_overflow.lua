--- expect: MS0108
return table.unpack({}, math.mininteger, math.maxinteger)

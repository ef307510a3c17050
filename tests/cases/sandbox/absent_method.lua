--- expect: MS0103 'string' has no field 'dump'
return plan { ("x"):dump() }

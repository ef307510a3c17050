--- expect: MS0103 'string' has no 'dump'
return plan { ("x"):dump() }

--- expect: MS0103
return plan { ("x"):dump() }

--- expect: MS0101 <goto a> at line 2 jumps into the scope of local 'x'
goto a local x ::a:: return x

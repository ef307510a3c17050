--- expect: MS0108 \x1b]0;owned\x07\x1b[2J\x0dplan.lua: no errors
error("\27]0;owned\7\27[2J\rplan.lua: no errors\nall is well")

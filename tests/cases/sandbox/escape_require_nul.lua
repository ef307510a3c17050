--- expect: MS0111 'a\x00b' is not a valid module name for require
return require "a\0b"

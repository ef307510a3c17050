--- expect: MS0111 'a\x00b' is not the name of a module
return require "a\0b"

--- expect: MS0111 '../../etc/passwd' is not the name of a module
return require "../../etc/passwd"

--- expect: MS0111 '../../etc/passwd' is not a valid module name for require
return require "../../etc/passwd"

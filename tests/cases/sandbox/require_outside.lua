--- expect: MS0111 '..secret' is not a valid module name for require
require "..secret"
require "/etc/passwd"
require "a/b"
return plan {}

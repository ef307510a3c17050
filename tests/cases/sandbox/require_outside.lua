--- expect: MS0111 '..secret' is not the name of a module
require "..secret"
require "/etc/passwd"
require "a/b"
return plan {}

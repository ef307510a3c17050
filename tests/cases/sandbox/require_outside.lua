--- expect: MS0111
require "..secret"
require "/etc/passwd"
require "a/b"
return plan {}

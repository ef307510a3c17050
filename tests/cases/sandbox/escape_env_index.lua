--- expect: MS0102 unknown name 'io'
return _ENV["io"]["open"]("/etc/passwd")

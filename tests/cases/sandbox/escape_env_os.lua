--- expect: MS0102 unknown name 'os'
return _ENV.os.exit(1)

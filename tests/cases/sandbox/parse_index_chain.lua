--- expect: MS0105 config.json has no 'a'
return config
--- repeat 400000 .a

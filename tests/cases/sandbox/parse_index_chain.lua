--- expect: MS0105 config.json has no field 'a'
return config
--- repeat 400000 .a

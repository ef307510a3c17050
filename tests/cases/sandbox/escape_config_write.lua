--- expect: MS0115 'config' cannot be changed
config.hidden_size = 1
return plan {}

--- expect: MS0115 'shard' is a builtin and cannot be changed
shard = nil
return plan {}

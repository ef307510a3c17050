--- expect: MS0115
shard = nil
return plan {}

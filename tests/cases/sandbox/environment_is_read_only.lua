--- expect: MS0115 'shard' is a word of the plan language and cannot be changed
shard = nil
return plan {}

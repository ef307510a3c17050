--- expect: MS0102 unknown name 'unknown_word'
for i = 1, unknown_word do end
return plan {}

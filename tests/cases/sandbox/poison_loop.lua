--- expect: MS0102
for i = 1, unknown_word do end
return plan {}

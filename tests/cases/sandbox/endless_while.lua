--- expect: MS0109
while true do end

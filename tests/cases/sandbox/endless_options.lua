--- expect: MS0109
while true do local o = options { a = 1 } end

--- expect: MS0110 the file does not return a plan
while true do
--- repeat 30000  break
 end

--- expect: MS0109 too many labels/gotos (limit is 32767)
while true do
--- repeat 170000  break
 end

--- expect: MS0109 more than 20000000 steps | more than 500 ms
do local x <close> = nil end while true do local s = "" .. 1 end

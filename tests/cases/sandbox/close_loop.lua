--- expect: MS0109
do local x <close> = nil end while true do local s = "" .. 1 end

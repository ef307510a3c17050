--- expect: MS0109 the plan reads more than 64 files
while true do local p = extends "llama" end

--- expect: MS0101 UTF-8 value too large near '"\u{FFFFFFFF'
return "\u{
--- repeat 100000 F
}"

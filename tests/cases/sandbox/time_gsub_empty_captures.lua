--- expect: MS0109 more than 20000000 steps | more than 500 ms
return ("a"):rep(100000):gsub("(b*)", ("%1"):rep(100000))

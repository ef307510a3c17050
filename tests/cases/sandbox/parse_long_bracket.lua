--- expect: MS0101 unfinished long string (starting at line 2) near <eof>
return [
--- repeat 1000000 =
[

--- expect: MS0110 does not return a plan
return {
--- repeat 120000  1.5,
}

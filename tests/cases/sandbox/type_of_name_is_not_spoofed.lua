--- expect: MS0107
return plan { at("x", { __name = "style" }) }

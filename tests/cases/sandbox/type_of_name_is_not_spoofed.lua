--- expect: MS0107 at: 'x' needs a style or a layout, got a table
return plan { at("x", { __name = "style" }) }

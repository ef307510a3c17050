--- expect: MS0201 pattern 'layers.{0..999999999999}': the range {0..999999999999} has more than 4096 numbers
return plan { #model:find("layers.{0..999999999999}") }

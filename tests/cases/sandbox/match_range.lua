--- expect: MS0201 pattern 'model.layers.{0..9223372036854775807}': the range {0..9223372036854775807} has mo
return plan { at("model.layers.{0..9223372036854775807}", colwise {}) }

--- expect: MS0201 braces are nested more than 32 deep (at character 33)
return plan { at(("{"):rep(1000) .. "a" .. ("}"):rep(1000), colwise {}) }

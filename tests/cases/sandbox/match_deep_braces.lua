--- expect: MS0201 braces are nested more than 32 deep (at character 33)
return plan { at(("{"):rep(2000) .. "a" .. ("}"):rep(2000), colwise {}) }

--- expect: MS0201 braces lie more than 32 deep within each other (at character 33)
return plan { at(("{"):rep(2000) .. "a" .. ("}"):rep(2000), colwise {}) }

--- expect: MS0201 braces lie more than 32 deep within each other (at character 33)
return plan { at(("{"):rep(1000) .. "a" .. ("}"):rep(1000), colwise {}) }

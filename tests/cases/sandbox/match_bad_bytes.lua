--- expect: MS0201 RE2: invalid UTF-8
return plan { at("\xff\xfe\0", colwise {}) }

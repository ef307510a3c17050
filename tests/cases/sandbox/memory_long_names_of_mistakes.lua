--- expect: MS0105 config.json has no
local k = ("k"):rep(1000000) for i = 1, 99 do local x = config[k .. i] end return plan {}

-- Run by stock Lua and in the sandbox; both must answer the same text.
local out = {}
local function say(...) for i = 1, select("#", ...) do out[#out + 1] = tostring((select(i, ...))) end out[#out + 1] = ";" end
say(("abc"):rep(3, "-"), ("x"):rep(0), ("x"):rep(-1), (""):rep(5), ("ab"):upper():lower():reverse():len(), ("abc"):byte(1, -1), string.char(104, 105))
say(("hello"):sub(2, -2), ("hello"):sub(-100, 100), ("hello"):sub(4, 2))
say(string.format("%5d|%-5d|%05d|%+d|%x|%X|%s|%10s|%-10s|%.2s|%5.1f|%g|%e|%%", 42, 42, 42, 42, 255, 255, "s", "r", "l", "cut", 3.14159, 0.1, 12345.678))
say(string.format("%s %s %s %d", nil, true, 1.5, 3.0))
local t = { 5, 2, 8, 1, 9, 3 }
table.sort(t) say(table.concat(t, ","))
table.sort(t, function(a, b) return a > b end) say(table.concat(t, ",", 2, 4))
table.insert(t, 7) table.insert(t, 1, 0) table.insert(t, #t + 1, 4) say(table.concat(t, " "))
say(table.remove(t), table.remove(t, 1), table.remove({}), #t, table.concat(t, " "))
say(table.unpack({ 1, 2, 3 })) say(table.unpack({ 1, 2, 3 }, 2)) say(table.unpack({ 1, 2, 3 }, 2, 5)) say(table.unpack({}, 1, 0))
local p = table.pack(1, nil, 3) say(p.n, p[1], p[2], p[3])
say(select("#"), select(2, "a", "b", "c")) say(select(-2, "a", "b", "c"))
say(tonumber("12"), tonumber("0x10"), tonumber("1e3"), tonumber("x"), tonumber(" 7 "), tonumber("7 8"), tonumber(5), tonumber(nil))
say(math.floor(2.5), math.ceil(2.5), math.max(1, 3, 2), math.min(4, 2), math.abs(-3), math.huge, math.tointeger(3.0), math.type(1), math.type(1.0), math.fmod(7, 3))
say(type(1), type("x"), type({}), type(nil), type(type), type(true), tostring(1e15), tostring(2^53), tostring(-0.0), 10 // 3, 7 % -3, 2^0.5)
for i, v in ipairs({ "a", "b", nil, "d" }) do say(i, v) end
say(assert(1, "unused"), next({}), next({ 10 }))
say("a" < "b", "Z" < "a", "a" .. 1 .. 2.0, #"héllo", 3 | 4, 7 & 2, 1 << 4)
return table.concat(out, " ")

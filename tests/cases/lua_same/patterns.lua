-- Run by stock Lua and in the sandbox; both must answer the same text.
local subjects = { "", "a", "hello world", "key = value, other=thing", "model.layers.0.mlp.gate_proj", "THE (quick) fox", "f(a(b)c)d",
  "  trim  ", "x^2 + y%", "aaab", "2026-11-21", "tab\tnew\nline", "[[x]]", "a.b-c_d", "\0nul\0", "aXbXc" }
local patterns = { "", "a", "%a+", "(%w+)%s*=%s*(%w+)", "^%s*(.-)%s*$", "%((.-)%)", "%b()", "%f[%a]%a+", "()", "(a*(.)%w(%s*))", "[^%.]+$",
  "%d+", "(%d+)%-(%d+)%-(%d+)", "[%w_]+", "[a-c]+", "[]]", "[^]]", "[%]]", "[a%-]", "a-b", "a?b", "^a", "b$", "$", "^", ".-X", "(.)%1", "%u%l*", "[%s%p]",
  "%%", "%^", "x*", "%S+", "(h)(e)(l)(l)(o)", "[A-Z][A-Z]", "[a-]", "[-a]", "%c", "%x+", "%g+", "%z" }
local out = {}
local function say(...) for i = 1, select("#", ...) do out[#out + 1] = tostring((select(i, ...))) end out[#out + 1] = ";" end
for _, s in ipairs(subjects) do
  for _, p in ipairs(patterns) do
    say(string.find(s, p))
    say(string.find(s, p, 2))
    say(string.find(s, p, -3))
    say(string.find(s, p, 1, true))
    say(string.match(s, p))
    say(string.match(s, p, 4))
    say(string.gsub(s, p, "<%0>"))
    say(string.gsub(s, p, "", 1))
    say(string.gsub(s, p, function(a) return a == "a" and "A" or nil end))
    say(string.gsub(s, p, { a = "table", key = 1 }))
    for a, b in string.gmatch(s, p) do say(a, b) end
    for _, first in ipairs { -100, -2, 0, 3, 100 } do
      for a, b in string.gmatch(s, p, first) do say(a, b) end
    end
  end
end
return table.concat(out, " ")

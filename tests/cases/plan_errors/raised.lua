local function heads(n)
  if n ~= 4 then error("expected 4 heads, got " .. n) end
end
heads(config.num_attention_heads)
return plan {}

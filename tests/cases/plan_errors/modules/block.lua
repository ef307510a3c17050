local block = {}

function block.attention(prefix)
  return {
    at(prefix .. ".q_proj", colwize {}),
    at(prefix .. ".o_proj", rowwise { out = replicate }),
  }
end

return block

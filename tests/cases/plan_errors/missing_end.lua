local rules = {}
for i = 0, 3 do
  rules[i] = at("model.norm", replicated {})
return plan { rules }

-- up_proj gathers what it leaves, gate_proj does not: their product fails by itself.
return plan { extends "llama", at("model.layers.1.mlp.up_proj", colwise { output = replicate }) }

-- qwen2.lua: Qwen2. Llama's modules; query, key and value have biases, which are sharded with their weights.
return plan { api = 1, extends "llama" }

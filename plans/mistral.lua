-- mistral.lua: Mistral's decoder layer has Llama's modules; its sliding window is the attention's own affair.
return plan { api = 1, extends "llama" }

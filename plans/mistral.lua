-- mistral.lua: Mistral's decoder layer has Llama's modules; its sliding window does not change the plan.
return plan { api = 1, extends "llama" }

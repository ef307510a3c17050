-- ministral3.lua: Ministral 3. Llama's modules; its rotary scaling does not change the plan.
return plan { api = 1, extends "llama" }

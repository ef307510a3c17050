-- ministral3.lua: Ministral 3. Llama's modules; its rotary scaling is the attention's own affair.
return plan { api = 1, extends "llama" }

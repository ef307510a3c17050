-- llama_nemotron_super_tp_plan.lua: the plan of this name for Llama-Nemotron Super: nemotron_nas for a checkpoint of
-- Nemotron-NAS, else llama.
local nas <const> = config:get("model_type", "") == "nemotron-nas"
return plan { api = 1, extends(nas and "nemotron_nas" or "llama") }

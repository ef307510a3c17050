--- option: sequence_paralel=true
--- option: loss=1
local opt = options { sequence_parallel = false, loss_parallel = false }
return plan { api = 1, opt.sequence_parallel and at("lm_head", colwise {}) }

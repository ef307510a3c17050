--- option: sequence_parallel=maybe
--- option: window=3.5
local opt = options { sequence_parallel = false, window = 8 }
return plan { api = 1, opt.sequence_parallel and divides(opt.window, 16) }

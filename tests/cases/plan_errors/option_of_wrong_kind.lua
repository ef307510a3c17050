--- option: sequence_parallel=maybe
--- option: window=3.5
--- option: scale=nan
--- option: share=1e999
local opt = options { sequence_parallel = false, window = 8, scale = 0.5, share = 0.5 }
return plan { api = 1, opt.sequence_parallel and divides(opt.window, 16) }

local opt = options { sequence_parallel = false, window = 8 }
return plan { opt.sequence and at("lm_head", colwise {}), opt.window == 8 and divides(1, opt.windw) }

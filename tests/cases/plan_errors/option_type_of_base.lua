local opt = options { sequence_parallel = 3 }
return plan { extends "llama", divides(opt.sequence_parallel, 3) }

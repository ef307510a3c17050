assert(config.hidden_size == 128, "this plan is for a hidden size of 128")
return plan {}

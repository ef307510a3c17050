return plan { api = 1, default(replicated()) }

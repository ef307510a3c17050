return plan { api = 2 }

return plan {}

return plan { at("lm_head, colwise {}) }

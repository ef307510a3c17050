return plan { model:has("lm_head") and at("lm_head", colwise {}) }

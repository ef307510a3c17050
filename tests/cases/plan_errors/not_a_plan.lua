return { at("lm_head", colwise {}) }

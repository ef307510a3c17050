local broken = require "modules.broken"
return plan { broken.rules(), at("lm_head", colwize {}) }

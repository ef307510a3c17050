local block = require "modules.block"
return plan { block.attention("model.layers.*") }

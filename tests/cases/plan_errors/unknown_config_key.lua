local layers = config.num_hiden_layers
local factor = config.rope_scaling.factr
local scale = config.rope_scaling.factor + config:get("nothing", 1)
for i = 0, config.num_layers - 1 do error("never reached") end
return plan { layers, factor, scale > 1 and divides(1, 2) }

-- A first plan for ResNet, from names, shapes and config.json (moonshard suggest).
-- "sure": all three agree. "guess": another reading is possible, so compare results with the unsharded model.
-- "by rows": linear layers whose use is unknown are sharded along the rows of the weight; their outputs are gathered.
-- "by channels": the output channels of a convolution are sharded, and its output gathered.
-- No sequence parallelism: layer1: a layer has no norm and only one block, so this list does not contain full
-- layers
local transformer <const> = require "transformer"

return plan {
  api = 1,
  -- replicated: not recognized
  at("bn1", replicated()),
  -- by channels: not recognized by name or shape
  at("layer1.*.conv1", transformer.channels(2)),
  -- by rows: not recognized
  at("fc", colwise { output = replicate }),
  -- by channels: a convolution with one group
  at("conv1", transformer.channels(2)),
  -- On a mesh with dp: the parameters of a layer are gathered while it is used.
  fsdp { wrap = "layer1.*" },
}

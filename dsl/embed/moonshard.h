// moonshard: everything a C++ program needs to run a LibTorch model under a plan.
//
//   auto mesh  = moonshard::DeviceMesh::FromEnvironment({{"tp", 2}});
//   auto plan  = moonshard::LoadPlan("model.lua", {.config = config, .mesh = mesh.shape(), .options = {{"name", true}}});
//   auto model = moonshard::Parallelize(net, plan, mesh);
//   torch::optim::AdamW optimizer(model.parameters(), 3e-4);
//   auto loss = model.forward(batch).sum();
//   loss.backward();
//   moonshard::ClipGradNorm(model, 1.0);
//   optimizer.step();
//
// What a user can get wrong throws moonshard::PlanError with all diagnostics; nothing here prints, exits or keeps global
// state. Each included header is the manual of its part.
#pragma once

#include "dsl/choose/choose_plan.h"
#include "dsl/eval/load_plan.h"
#include "engine/apply/call_as_model.h"
#include "engine/apply/clip_grad_norm.h"
#include "engine/apply/initialize.h"
#include "engine/apply/load.h"
#include "engine/apply/parallelize.h"
#include "engine/apply/state.h"
#include "engine/apply/vocabulary_of.h"
#include "engine/base/diagnostic.h"
#include "engine/base/json.h"
#include "engine/collective/agree.h"
#include "engine/collective/world.h"
#include "engine/explain/explain.h"
#include "engine/findings/forms.h"
#include "engine/intercept/region.h"
#include "engine/loss/losses.h"
#include "engine/mesh/device_mesh.h"
#include "engine/models/causal_lm.h"
#include "engine/nn/autocast.h"
#include "engine/nn/defer_init.h"
#include "engine/nn/embedding.h"
#include "engine/nn/hook.h"
#include "engine/nn/linear.h"
#include "engine/nn/norm.h"
#include "engine/optim/adamw.h"
#include "engine/optim/finite.h"
#include "engine/optim/learning_rate.h"
#include "engine/prove/type_scope.h"
#include "engine/safetensors/checkpoint.h"
#include "engine/safetensors/config.h"
#include "engine/safetensors/file.h"
#include "engine/training_state/training_checkpoints.h"

// moonshard: the complete C++ interface to shard, run and train a LibTorch model with a plan.
//
//   auto mesh  = moonshard::DeviceMesh::FromEnvironment({{"tp", 2}});
//   auto plan  = moonshard::LoadPlan("model.lua", {.config = config, .mesh = mesh.shape(), .options = {{"name",
//              true}}});
//   auto model = moonshard::Parallelize(net, plan, mesh);
//   torch::optim::AdamW optimizer(model.parameters(), 3e-4);
//   auto loss = model.forward(batch).sum();
//   loss.backward();
//   moonshard::ClipGradNorm(model, 1.0);
//   optimizer.step();
//
// An error in a plan, a model or an argument throws moonshard::PlanError with all diagnostics. The library does not
// print, does not exit and keeps no process-wide state. The comments of each included header document its functions.
// For authors of models: engine/runtime/nn/README.md, installed in share/doc/moonshard.
#pragma once

#include "dsl/language/eval/load_plan.h"
#include "dsl/planning/choose/choose_plan.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/analysis/footprint/footprint.h"
#include "engine/analysis/footprint/step_recorder.h"
#include "engine/analysis/meta/meta_scope.h"
#include "engine/analysis/prove/operator_trace.h"
#include "engine/analysis/prove/type_scope.h"
#include "engine/core/base/diagnostic.h"
#include "engine/core/base/hash.h"
#include "engine/core/base/json.h"
#include "engine/core/base/version.h"
#include "engine/core/base/visible.h"
#include "engine/core/findings/forms.h"
#include "engine/io/checkpoint/adapter_files.h"
#include "engine/io/config/config.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/writer.h"
#include "engine/io/storage/file.h"
#include "engine/models/causal_lm.h"
#include "engine/models/logits.h"
#include "engine/models/own_loss.h"
#include "engine/models/program/user_inputs.h"
#include "engine/models/router_losses.h"
#include "engine/plan/explain/explain.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/collective/store_group.h"
#include "engine/runtime/collective/world.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/intercept/region.h"
#include "engine/runtime/mesh/device_mesh.h"
#include "engine/runtime/mesh/rank_watch.h"
#include "engine/runtime/nn/autocast.h"
#include "engine/runtime/nn/conv.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/embedding_bag.h"
#include "engine/runtime/nn/group_norm.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/late_parameter.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"
#include "engine/runtime/sharded_model/call_as_model.h"
#include "engine/runtime/sharded_model/clip_grad_norm.h"
#include "engine/runtime/sharded_model/initialize.h"
#include "engine/runtime/sharded_model/load.h"
#include "engine/runtime/sharded_model/replicas.h"
#include "engine/runtime/sharded_model/state.h"
#include "engine/runtime/sharded_model/unshard_scope.h"
#include "engine/train/loss/losses.h"
#include "engine/train/loss/sequence_loss.h"
#include "engine/train/loss/vocabulary_of.h"
#include "engine/train/optim/adamw.h"
#include "engine/train/optim/finite.h"
#include "engine/train/optim/learning_rate.h"
#include "engine/train/training_state/training_checkpoints.h"

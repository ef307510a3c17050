#include "engine/runtime/sharded_model/state.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "engine/io/safetensors/writer.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/apply/local_shard.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/runtime/sharded_model/buffers.h"

namespace moonshard {
namespace {

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

}  // namespace

std::map<std::string, at::Tensor> LocalState(const AppliedPlan& model) {
  std::map<std::string, at::Tensor> out;
  for (const LiveParameter& parameter : model.parameters()) out[parameter.path] = parameter.tensor.detach();
  return out;
}

namespace {

// The axes that shard a parameter, outermost first.
std::vector<MeshAxis> CutAxes(const AppliedPlan& model, const LiveParameter& parameter) {
  std::vector<MeshAxis> axes;
  for (MeshAxis axis : kMeshAxes) {
    if (parameter.placement[axis].is_shard() && model.plan().mesh.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

// The ranks that hold the shards: every place along `axes`, the rest as `rank` has it; the last axis counts fastest.
// The order is that in which the all-gathers below leave the blocks: along the innermost axis first, then groups of
// those along the next. With dp_shard=2 and tp=2 that is (dp 0, tp 0), (0, 1), (1, 0), (1, 1).
std::vector<int64_t> HoldersOf(const MeshShape& mesh, int64_t rank, const std::vector<MeshAxis>& axes) {
  std::vector<int64_t> holders = {rank};
  for (MeshAxis axis : axes) {
    std::vector<int64_t> more;
    for (int64_t holder : holders) {
      for (int64_t place : mesh.GroupOf(holder, axis)) more.push_back(place);
    }
    holders = std::move(more);
  }
  return holders;
}

}  // namespace

// The full tensor on every rank, from shards of any layout. One flat all-gather for each axis that shards it, of shards
// padded to the longest one, because shards may be uneven and an all-gather takes equal blocks. What arrives is one
// block a holder; where its elements belong follows from the plan (LocalIntervals), so nothing but values is
// communicated. Replicas (key and value heads on several ranks) are written to their place more than once, with the
// same values.
at::Tensor GatherFull(const AppliedPlan& model, const LiveParameter& parameter, const at::Tensor& shard) {
  const c10::NoGradGuard no_grad;
  const MeshShape& mesh = model.plan().mesh;
  const CollectiveLabel label("gathering " + parameter.path);
  // The tensor may be undefined on some ranks only (the gradient of an expert that got no token). Either all ranks
  // gather or none does, so they agree on it first; a rank without one then contributes zeros.
  bool defined = shard.defined();
  for (MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) == 1 || !model.has_group(axis)) continue;
    const std::vector<int64_t> everywhere = model.group(axis).ExchangeNumbers(defined ? 1 : 0, label);
    defined = std::ranges::count(everywhere, 1) > 0;
  }
  if (!defined) return {};
  const std::vector<MeshAxis> axes = CutAxes(model, parameter);
  if (axes.empty()) {
    return shard.defined() ? shard.detach().cpu().clone()
                           : at::zeros(parameter.shape, at::TensorOptions(parameter.tensor.scalar_type()));
  }

  const std::vector<int64_t> holders = HoldersOf(mesh, model.mesh().rank(), axes);
  int64_t most = 0;
  for (int64_t holder : holders) {
    most = std::max(most, Elements(LocalShape(parameter.shape, parameter.placement, mesh, holder)));
  }
  // On the mesh's device, also of a shard that the plan keeps in host memory: NCCL communicates no other tensors.
  at::Tensor gathered =
      at::zeros({most}, parameter.tensor.options().device(model.mesh().device()).requires_grad(false));
  if (shard.defined()) gathered.narrow(0, 0, shard.numel()).copy_(shard.detach().reshape({-1}));
  // The innermost axis first, so that the blocks end in the order of `holders`.
  Placement left = parameter.placement;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    CollectiveUse use;
    use.label = &label;
    use.shape = parameter.shape;
    left[*axis] = Layout::Replicate();
    use.bytes = Elements(LocalShape(parameter.shape, left, mesh, model.mesh().rank())) * gathered.element_size();
    gathered = model.group(*axis).AllGather(gathered, use);
  }
  gathered = gathered.cpu();
  at::Tensor full = at::empty(parameter.shape, gathered.options());
  for (size_t h = 0; h < holders.size(); ++h) {
    const auto dims = LocalIntervals(parameter.shape, parameter.placement, mesh, holders[h]);
    const std::vector<int64_t> local = LocalShape(parameter.shape, parameter.placement, mesh, holders[h]);
    PutShard(full, gathered.narrow(0, static_cast<int64_t>(h) * most, Elements(local)).view(local), dims);
  }
  return full;
}

std::map<std::string, at::Tensor> FullState(const AppliedPlan& model) {
  const std::map<size_t, at::Tensor> settled = SettledBuffers(model);
  std::map<std::string, at::Tensor> out;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const LiveParameter& parameter = model.parameters()[i];
    const auto buffer = settled.find(i);
    out[parameter.path] = GatherFull(model, parameter, buffer == settled.end() ? parameter.tensor : buffer->second);
  }
  return out;
}

void SaveState(const std::string& path, const std::map<std::string, at::Tensor>& state,
               const std::map<std::string, std::string>& metadata) {
  Diagnostics errors;
  std::vector<at::Tensor> held;  // until the file is written
  std::vector<TensorData> data;
  for (const auto& [name, tensor] : state) {
    const std::optional<DType> type = tensor.defined() ? DTypeOf(tensor.scalar_type()) : std::nullopt;
    if (!type || tensor.is_meta()) {
      Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "tensor '" + name + "' cannot be written to a checkpoint");
      d.path = path;
      d.declared = tensor.defined() ? c10::toString(tensor.scalar_type()) + std::string(" on ") + tensor.device().str()
                                    : "an undefined tensor";
      d.required = "a tensor with values, of a dtype that safetensors supports";
      errors.push_back(std::move(d));
      continue;
    }
    held.push_back(tensor.detach().cpu().contiguous());
    data.push_back({{name, *type, held.back().sizes().vec()}, held.back().const_data_ptr()});
  }
  if (errors.empty()) {
    if (std::optional<Diagnostic> error = WriteSafetensors(path, data, metadata)) errors.push_back(std::move(*error));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
}

}  // namespace moonshard

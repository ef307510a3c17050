// Sets the state of a run from a step, on any mesh and plan. Three parts, and after each the ranks learn whether all
// succeeded (training_checkpoints.cc):
//
//   Open     match every tensor of the model and the optimizer with one that is stored; nothing is changed
//   Read     parameters in place, the optimizer's tensors into memory of their own
//   Finish   options and memory of the optimizer, generators, the host's texts
//
// The optimizer is set last and in one go, because its present state is lost then: until all ranks have read all of it,
// the state from before the load is complete.
#include "engine/train/training_state/step_reader.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "engine/core/base/hash.h"
#include "engine/core/base/small_file.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/header.h"
#include "engine/io/storage/file.h"
#include "engine/plan/compile/local_shape.h"
#include "engine/runtime/dtype/scalar_type.h"
#include "engine/train/training_state/random_states.h"
#include "engine/train/training_state/step_writer.h"

namespace moonshard {
namespace {

// A checkpoint can be damaged everywhere: after so many errors the rest is not informative.
constexpr size_t kMostErrors = 20;

Diagnostic StepFinding(Finding finding, const std::string& message, const std::string& path, Severity severity) {
  Diagnostic d = MakeDiagnostic(finding, message);
  d.severity = severity;
  d.path = path;
  return d;
}

Diagnostic Mismatch(const ShardedTensor& stored, const std::vector<int64_t>& is, const std::vector<int64_t>& must) {
  const bool dtype = is == must;
  Diagnostic d =
      StepFinding(Finding::kTensorMismatch,
                  dtype ? "the dtype of tensor '" + stored.name + "' of the checkpoint is not supported"
                        : "the shape of tensor '" + stored.name + "' of the checkpoint differs from the model",
                  stored.name, Severity::kError);
  d.declared = std::string(ToString(stored.dtype)) + " " + ShapeToString(is);
  d.required = dtype ? "a dtype of LibTorch" : ShapeToString(must);
  return d;
}

}  // namespace

std::map<std::string, at::Generator> GeneratorsOf(const TrainingState& state) {
  if (!state.generators.empty()) return state.generators;
  std::map<std::string, at::Generator> out;
  out.emplace("cpu", at::globalContext().defaultGenerator(c10::Device(c10::kCPU)));
  const c10::Device device = state.model->mesh().device();
  if (device.is_cuda()) out.emplace("cuda", at::globalContext().defaultGenerator(device));
  return out;
}

// A load is planned before it reads: every tensor of the model and of the optimizer is matched with one of the
// checkpoint, by name, shape and kind, and everything that does not fit is collected. Reading goes straight into the
// parameter's memory where dtype and device allow it, else through a buffer of one shard.
Diagnostics StepReader::Open(const std::string& folder, int64_t step) {
  Diagnostics found;
  sharded_ = ShardedCheckpoint::Open(folder).Collect(found);
  if (!sharded_) return found;
  std::optional<TrainingRecord> record =
      TrainingRecord::Of(sharded_->manifest(), folder + "/" + kManifestFile).Collect(found);
  if (!record) return found;
  record_ = std::move(*record);
  if (record_.step != step) {
    found.push_back(StepFinding(Finding::kBadManifest,
                                "'" + folder + "' holds a different step than the directory name states", folder,
                                Severity::kError));
    found.back().declared = "step " + std::to_string(record_.step);
    found.back().required = "step " + std::to_string(step);
    return found;
  }
  PlanParameters(found);
  PlanOptimizer(found);
  for (Diagnostic& d : found) d.where.file = folder + "/" + kManifestFile;
  return found;
}

// What this rank holds of a tensor now, as intervals of indices. How the checkpoint's ranks held it is not needed here:
// ReadShard gathers the intervals from any rank files, so the mesh and the plan may be other ones than at the save.
StepReader::ReadOne StepReader::PlanOne(const ShardedTensor& stored, const std::vector<int64_t>& shape,
                                        const Placement& placement) const {
  const AppliedPlan& model = *state_.model;
  ReadOne read;
  read.stored = &stored;
  read.wanted = TidyShard(LocalIntervals(shape, placement, model.plan().mesh, model.mesh().rank()));
  read.placement = placement;
  return read;
}

void StepReader::PlanParameters(Diagnostics& found) {
  std::set<std::string> used;
  size_t converted = 0;
  for (const LiveParameter& parameter : state_.model->parameters()) {
    const ShardedTensor* stored = manifest().Find(parameter.path);
    for (const std::string& alias : parameter.aliases) {
      if (!stored) stored = manifest().Find(alias);
    }
    if (!stored) {
      std::vector<std::string> names;
      for (const ShardedTensor& tensor : manifest().tensors) names.push_back(tensor.name);
      found.push_back(StepFinding(Finding::kMissingTensor, "the checkpoint has no tensor '" + parameter.path + "'",
                                  folder(), Severity::kError));
      found.back().help = DidYouMean(parameter.path, names, 0);
      continue;
    }
    used.insert(stored->name);
    const std::vector<int64_t>& shape = manifest().LayoutOf(*stored).shape;
    const std::optional<c10::ScalarType> type = ScalarTypeOf(stored->dtype);
    if (shape != parameter.shape || !type) {
      found.push_back(Mismatch(*stored, shape, parameter.shape));
      continue;
    }
    ReadOne read = PlanOne(*stored, parameter.shape, parameter.placement);
    const at::Tensor live = parameter.tensor.detach();
    if (live.is_cpu() && live.is_contiguous() && live.scalar_type() == *type) {
      read.target = live;
    } else {
      read.place = live;
    }
    if (live.scalar_type() != *type) ++converted;
    reads_.push_back(std::move(read));
  }
  if (converted > 0) {
    found.push_back(
        StepFinding(Finding::kTensorMismatch,
                    "the checkpoint has " + Count(static_cast<size_t>(converted), "tensor") +
                        " with another dtype than the model; the values are converted to the dtype of the model",
                    folder(), Severity::kWarning));
  }
  // A tensor too many is a warning and one too few an error: a model without a head may continue from one with it.
  // Names that are neither the model's nor an optimizer's.
  if (record_.optimizer) {
    for (const MemoryRecord& memory : record_.optimizer->memories) {
      for (const std::string& parameter : memory.parameters) {
        for (const std::string& tensor : memory.tensors) used.insert(OptimizerTensorName(tensor, parameter));
      }
    }
  }
  for (const ShardedTensor& tensor : manifest().tensors) {
    if (used.contains(tensor.name)) continue;
    found.push_back(StepFinding(Finding::kMissingTensor,
                                "the checkpoint has a tensor '" + tensor.name + "' that the model does not have",
                                folder(), Severity::kWarning));
  }
}

// State of the optimizer is stored under the path of its parameter. A tensor with the parameter's shape (a moment) has
// the parameter's placement; one without dims (a count of steps) is replicated; other shapes cannot be sharded and are
// an error.
void StepReader::PlanOptimizer(Diagnostics& found) {
  if (!record_.optimizer) {
    if (adapter_) {
      found.push_back(StepFinding(Finding::kMissingTensor, "the checkpoint was saved without an optimizer", folder(),
                                  Severity::kError));
    }
    return;
  }
  const OptimizerRecord& record = *record_.optimizer;
  if (!adapter_) {
    found.push_back(
        StepFinding(Finding::kMissingTensor,
                    "the optimizer state of the checkpoint is not loaded: this TrainingState has no optimizer",
                    folder(), Severity::kWarning));
    return;
  }
  if (record.kind != adapter_->kind()) {
    found.push_back(StepFinding(Finding::kNotSupported, "the checkpoint was saved with another optimizer", folder(),
                                Severity::kError));
    found.back().declared = record.kind;
    found.back().required = adapter_->kind();
    return;
  }
  for (Diagnostic& d : adapter_->CheckRecord(record)) found.push_back(std::move(d));
  PlanGroups(record, found);
  std::map<std::string, size_t> index_of;
  const std::vector<LiveParameter>& parameters = state_.model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) index_of[parameters[i].path] = i;
  for (const MemoryRecord& memory : record.memories) {
    for (const std::string& path : memory.parameters) {
      const auto index = index_of.find(path);
      if (index == index_of.end()) continue;  // reported with its group
      const LiveParameter& parameter = parameters[index->second];
      MemoryOne one{index->second, &memory, {}};
      for (const std::string& name : memory.tensors) {
        const ShardedTensor* stored = manifest().Find(OptimizerTensorName(name, path));
        if (!stored || !ScalarTypeOf(stored->dtype)) {
          found.push_back(StepFinding(Finding::kBadManifest,
                                      "the checkpoint has no valid tensor '" + OptimizerTensorName(name, path) + "'",
                                      folder(), Severity::kError));
          continue;
        }
        const std::vector<int64_t>& shape = manifest().LayoutOf(*stored).shape;
        if (shape != parameter.shape && !shape.empty()) {
          found.push_back(Mismatch(*stored, shape, parameter.shape));
          continue;
        }
        one.reads.push_back(reads_.size());
        reads_.push_back(PlanOne(*stored, shape, shape == parameter.shape ? parameter.placement : Placement()));
      }
      memories_.push_back(std::move(one));
    }
  }
}

// A group is compared as a set of parameters: options belong to the group, and the order within it has no effect on a
// step.
void StepReader::PlanGroups(const OptimizerRecord& record, Diagnostics& found) const {
  std::map<const void*, std::string> path_of;  // looked up only
  for (const LiveParameter& p : state_.model->parameters()) path_of[p.tensor.unsafeGetTensorImpl()] = p.path;
  const std::vector<std::vector<at::Tensor>> groups = adapter_->Groups();
  if (groups.size() != record.groups.size()) {
    found.push_back(StepFinding(Finding::kNotSupported,
                                "the optimizer and the checkpoint differ in the number of parameter groups", folder(),
                                Severity::kError));
    found.back().declared = std::to_string(groups.size());
    found.back().required = std::to_string(record.groups.size()) + ", as in the checkpoint";
    return;
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    std::vector<std::string> has;
    for (const at::Tensor& parameter : groups[g]) has.push_back(path_of[parameter.unsafeGetTensorImpl()]);
    std::vector<std::string> must = record.groups[g].parameters;
    std::ranges::sort(has);
    std::ranges::sort(must);
    if (has == must) continue;
    std::vector<std::string> different;
    std::ranges::set_symmetric_difference(has, must, std::back_inserter(different));
    found.push_back(StepFinding(
        Finding::kNotSupported,
        "the parameters of the optimizer's parameter group " + std::to_string(g) + " differ from the checkpoint",
        folder(), Severity::kError));
    found.back().declared = Count(has.size(), "parameter");
    found.back().required = Count(must.size(), "parameter") + ", as in the checkpoint";
    if (different.empty()) continue;
    const bool stored = std::ranges::binary_search(must, different.front());
    found.back().required +=
        "; '" + different.front() + "' is only in the " + (stored ? "checkpoint's group" : "optimizer's group");
  }
}

Diagnostics StepReader::Read(bool check_all) {
  const c10::AutoGradMode no_grad(false);
  Diagnostics found;
  const std::string random = folder() + "/" + kRandomFile;
  if (std::optional<std::string> bytes = ReadSmallFile(random, SmallFile::kRandomStates).Collect(found)) {
    random_ = *std::move(bytes);
    if (random_.size() != record_.random_bytes) random_.clear();
    if (HashOf(random_) != record_.random_hash) {
      found.push_back(Corrupt(random, "", HashOf(random_), record_.random_hash));
    }
  }
  for (ReadOne& read : reads_) {
    if (found.size() >= kMostErrors) return found;
    if (!read.target.defined()) {
      read.target = at::empty(LocalShapeOf(read.wanted), at::TensorOptions().dtype(*ScalarTypeOf(read.stored->dtype)));
    }
    if (read.target.numel() == 0) continue;
    if (Failure failed = sharded_->ReadShard(*read.stored, read.wanted, read.target.mutable_data_ptr())) {
      found.push_back(std::move(*failed));
      continue;
    }
    if (!read.place.defined()) {
      read.target.unsafeGetTensorImpl()->bump_version();  // the read did not pass LibTorch
      continue;
    }
    read.place.copy_(read.target);
    read.target = at::Tensor();
  }
  if (check_all) {
    for (Diagnostic& d : CheckShare()) found.push_back(std::move(d));
  }
  return found;
}

// Bytes that this mesh reads in another form than they were written (parts of shards, or nothing at all, as those of an
// optimizer that the run no longer has) are not compared with a hash while they are read. They are dealt to the ranks
// in turn, so that with check_all every stored shard is read by at least one rank. Which shards some rank reads as they
// are follows from the placements, and every rank computes it for all: no exchange, and no shard that each leaves to
// the other.
Diagnostics StepReader::CheckShare() {
  const MeshShape& mesh = state_.model->plan().mesh;
  const size_t files = manifest().rank_files.size();
  // By layout in the checkpoint and placement now: which files' shards some rank reads as they are.
  std::map<std::pair<uint32_t, std::string>, std::vector<bool>> known;
  const auto read_full = [&](const ReadOne& read) -> const std::vector<bool>& {
    const auto [entry, fresh] = known.try_emplace({read.stored->layout, read.placement.ToText()}, files, false);
    if (!fresh) return entry->second;
    const ShardLayout& layout = manifest().LayoutOf(*read.stored);
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const ShardDims wanted = TidyShard(LocalIntervals(layout.shape, read.placement, mesh, rank));
      const auto same = std::ranges::find(layout.shards, std::optional(wanted));
      if (same != layout.shards.end()) entry->second[static_cast<size_t>(same - layout.shards.begin())] = true;
    }
    return entry->second;
  };
  std::map<const ShardedTensor*, const ReadOne*> read_of;  // looked up only
  for (const ReadOne& read : reads_) read_of[read.stored] = &read;

  Diagnostics found;
  int64_t next = 0;
  for (const ShardedTensor& tensor : manifest().tensors) {
    const auto read = read_of.find(&tensor);
    for (size_t file = 0; file < files; ++file) {
      if (!manifest().LayoutOf(tensor).shards[file]) continue;
      if (read != read_of.end() && read_full(*read->second)[file]) continue;
      if (next++ % mesh.world_size() != state_.model->mesh().rank()) continue;
      if (Failure failed = sharded_->CheckShard(tensor, file)) found.push_back(std::move(*failed));
      if (found.size() >= kMostErrors) return found;
    }
  }
  return found;
}

// The optimizer's state is replaced as a whole: what the checkpoint lacks is erased, so that a state from before the
// load never mixes with one from the checkpoint. State in the dtype that the parameter had follows the parameter to its
// present dtype; state in another dtype (float32 moments of bfloat16 parameters) keeps it.
Diagnostics StepReader::Finish(TrainingState& state) {
  const c10::AutoGradMode no_grad(false);
  Diagnostics found;
  const std::vector<LiveParameter>& parameters = state.model->parameters();
  if (adapter_) {
    const std::vector<std::vector<at::Tensor>> groups = adapter_->Groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (Diagnostic& d : adapter_->SetOptions(g, record_.optimizer->groups[g].options)) found.push_back(std::move(d));
      for (const at::Tensor& parameter : groups[g]) (void)adapter_->SetMemory(parameter, std::nullopt);
    }
    for (MemoryOne& one : memories_) {
      const LiveParameter& parameter = parameters[one.parameter];
      ParameterMemory memory;
      memory.values = one.record->values;
      for (size_t i = 0; i < one.reads.size(); ++i) {
        ReadOne& read = reads_[one.reads[i]];
        // State that had the parameter's dtype gets the dtype that the parameter has now.
        const ShardedTensor* stored = manifest().Find(parameter.path);
        const bool as_parameter = stored && stored->dtype == read.stored->dtype;
        const c10::ScalarType type = as_parameter ? parameter.tensor.scalar_type() : read.target.scalar_type();
        memory.tensors[one.record->tensors[i]] = read.target.to(parameter.tensor.device(), type);
        read.target = at::Tensor();
      }
      for (Diagnostic& d : adapter_->SetMemory(parameter.tensor, std::move(memory))) found.push_back(std::move(d));
    }
  }
  SetGenerators(state, found);
  state.host = record_.host;
  return found;
}

// A generator's state is a rank's own: dropout draws other numbers on each data-parallel rank. On the mesh of the save
// each rank continues its own; on another one ChooseRandomState decides between the state of a saved rank and a new
// seed.
void StepReader::SetGenerators(TrainingState& state, Diagnostics& found) const {
  const std::optional<Header> header =
      ParseHeader(random_, random_.size(), folder() + "/" + kRandomFile).Collect(found);
  if (!header) return;
  std::map<std::string, std::string> states;
  for (const HeaderTensor& tensor : header->tensors) {
    states[tensor.name] = random_.substr(header->data_begin + tensor.begin, tensor.end - tensor.begin);
  }
  const MeshShape& saved = manifest().mesh;
  const AppliedPlan& model = *state.model;
  for (auto& [name, generator] : GeneratorsOf(state)) {
    std::vector<std::string> by_rank;
    for (int64_t rank = 0; rank < saved.world_size(); ++rank) {
      const auto of_rank = states.find(RandomName(rank, name));
      if (of_rank == states.end()) break;  // the mesh of a file may be larger than any run
      by_rank.push_back(of_rank->second);
    }
    if (static_cast<int64_t>(by_rank.size()) != saved.world_size()) {
      found.push_back(StepFinding(
          Finding::kMissingTensor,
          "the checkpoint has no state of generator '" + name + "' for every rank; the generator is unchanged",
          folder(), Severity::kWarning));
      continue;
    }
    const RandomChoice choice = ChooseRandomState(saved, by_rank, model.plan().mesh, model.mesh().rank());
    at::Generator target = generator;
    const std::lock_guard lock(target.mutex());
    if (choice.reseed) {
      target.set_current_seed(*choice.reseed);
      continue;
    }
    std::string& bytes = by_rank[static_cast<size_t>(choice.rank)];
    try {
      target.set_state(at::from_blob(bytes.data(), {static_cast<int64_t>(bytes.size())}, at::kByte).clone());
    } catch (const c10::Error&) {
      found.push_back(StepFinding(Finding::kBadManifest,
                                  "the saved state of generator '" + name + "' of rank " + std::to_string(choice.rank) +
                                      " is not valid for this generator",
                                  folder() + "/" + kRandomFile, Severity::kError));
      found.back().declared = std::to_string(bytes.size()) + " bytes";
    }
  }
}

}  // namespace moonshard

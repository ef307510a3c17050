// A backend without peers: every collective completes at once with a result of the right shape and is noted in the log.
// For one rank of a mesh of any size on one machine (proofs, footprints). An all-gather repeats this rank's shard and
// an all-reduce returns its term: shapes and dtypes are those of a run, values are not. A reduce-scatter takes this
// rank's own block, an all-to-all keeps every block where it is; no result is memory that was never written.
#include "engine/runtime/mesh/recording_backend.h"

#include <utility>

namespace moonshard {
namespace {

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

class RecordingBackend final : public c10d::Backend {
 public:
  RecordingBackend(int rank, int size, std::string name, std::shared_ptr<CollectiveLog> log)
      : Backend(rank, size), name_(std::move(name)), log_(std::move(log)) {}

  const std::string getBackendName() const override { return "recording"; }  // NOLINT: c10d's signature

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return Note("all_reduce", tensors.at(0));
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& /*options*/) override {
    for (at::Tensor& part : output.tensor_split(getSize(), 0)) part.copy_(input);
    return Note("all_gather", input);
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& /*options*/) override {
    output.copy_(input.tensor_split(getSize(), 0)[static_cast<size_t>(getRank())]);
    return Note("reduce_scatter", input);
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& /*out*/,
                                               std::vector<int64_t>& /*in*/,
                                               const c10d::AllToAllOptions& /*options*/) override {
    if (output.sizes() == input.sizes()) {
      output.copy_(input);
    } else {
      output.zero_();
    }
    return Note("all_to_all", input);
  }

 private:
  c10::intrusive_ptr<c10d::Work> Note(const char* kind, const at::Tensor& tensor) {
    log_->push_back({name_, kind, tensor.sizes().vec(), c10::toString(tensor.scalar_type())});
    return c10::make_intrusive<DoneWork>();
  }

  std::string name_;
  std::shared_ptr<CollectiveLog> log_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> MakeRecordingBackend(int rank, int size, std::string name,
                                                       std::shared_ptr<CollectiveLog> log) {
  return c10::make_intrusive<RecordingBackend>(rank, size, std::move(name), std::move(log));
}

}  // namespace moonshard

// Batches: the rows of the data that a rank trains on in each step. Their order depends only on the data and a seed:
// each pass over the rows is one permutation of them. A step takes the next `batch` rows, splits them into
// micro-batches, and splits each micro-batch into the shares of the data-parallel ranks. The global batches are
// therefore the same for any number of ranks and of micro-batches, and ranks that share their data (tp) get the same
// rows.
// Stage before: rows.h. Stage after: the training step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsl/commands/train/rows.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

// The rows of one rank in one micro-batch.
struct Batch {
  NamedTensors tensors;  // on the mesh's device
  NamedTensors on_host;  // on a GPU: the same tensors in host memory
  int64_t counted = 0;   // labels that the loss counts; 0: the loss of these rows has the weight 0

  const at::Tensor& operator[](const std::string& name) const { return tensors.at(name); }
  // The tensor in host memory if there is one, so that its values can be read without a wait for the GPU.
  const at::Tensor& OnHost(const std::string& name) const {
    const auto found = on_host.find(name);
    return found == on_host.end() ? tensors.at(name) : found->second;
  }
};

struct BatchOptions {
  int64_t batch = 1;          // rows of a step, over all ranks
  int64_t micro_batches = 1;  // micro-batches that a rank processes one after another
  uint64_t seed = 0;
};

class Batches {
 public:
  // Errors: kBadInput if the batch is not divisible by the number of data-parallel ranks times micro-batches.
  static Result<Batches> Make(std::shared_ptr<const Rows> rows, const DeviceMesh& mesh, const BatchOptions& options);

  // This rank's rows of micro-batch `micro` of the next step.
  Batch Next(int64_t micro) const;
  // Moves the position to the next step.
  void EndStep() { taken_ += options_.batch; }

  // The data-parallel index of this rank. Ranks with the same index get the same rows.
  int64_t place() const { return place_; }
  // Whether all shares of a step have the same number of counted labels, so that their mean losses weigh the same.
  bool even() const { return source_->even(); }
  // What a step consists of, "tokens" or "examples", and their number in one step, over all ranks.
  std::string unit() const { return source_->unit(); }
  int64_t units_per_step() const { return options_.batch * source_->units_per_row(); }
  // The position as a JSON text: the rows taken so far, the seed, the sequence length of tokens, and the identity of
  // the data.
  std::string Position() const;
  // Resumes from a position. Errors: kBadInput, one for each of data, sequence length and seed that differs from the
  // saved value; with `accept` these are warnings, and the run continues at the saved number of rows in the current
  // data.
  Diagnostics Seek(const std::string& position, bool accept);

  // For a loss on held-out data: the rows in the order of the files, divided into parts of `batch` rows. Part() returns
  // this rank's rows of part `i`. In the last part a rank may have fewer rows, or none. Of data that fills() (Rows),
  // the rows that are missing are rows without counted labels. Of other data, a rank without rows gets copies of the
  // first row, without counted labels: it must take part in the collectives of the forward.
  int64_t parts() const { return (source_->count() + options_.batch - 1) / options_.batch; }
  Batch Part(int64_t i) const;

  // Batches without values, on the meta device, one for each shape that Next (Part, if `held_out`) returns on this
  // rank.
  std::vector<Batch> Shapes(bool held_out) const;

 private:
  Batches(std::shared_ptr<const Rows> rows, const DeviceMesh& mesh, const BatchOptions& options);
  int64_t share() const { return options_.batch / (ranks_ * options_.micro_batches); }
  // The rows of this rank in part `i`: from 0 to share().
  int64_t RowsOfPart(int64_t i) const;
  Batch Finish(NamedTensors tensors, bool counts) const;

  std::shared_ptr<const Rows> source_;
  BatchOptions options_;
  c10::Device device_;
  int64_t place_;  // among the data-parallel ranks
  int64_t ranks_;
  int64_t taken_ = 0;  // rows so far
};

}  // namespace moonshard

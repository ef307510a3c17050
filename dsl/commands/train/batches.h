// Batches: the rows of the data that a rank trains on in each step. Their order depends only on the data and
// a seed: each pass over the windows is one permutation of them. A step takes the next `batch` of these, and splits
// them into micro-batches and those into the data-parallel ranks' shares; so the global batches are the same for any
// number of ranks and of micro-batches, and ranks that share their data (tp) see the same rows.
// Stage before: token_files.h. Stage after: the training step.
#pragma once

#include <cstdint>
#include <string>

#include "dsl/commands/train/token_files.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

// Rows of ids and the ids that follow them: int64 [rows, sequence] each, on the mesh's device. A target of -100 is
// ignored.
struct Batch {
  at::Tensor ids;
  at::Tensor targets;
};

struct BatchOptions {
  int64_t batch = 1;          // rows of a step, over all ranks
  int64_t micro_batches = 1;  // parts that a rank processes one after the other
  uint64_t seed = 0;
};

class Batches {
 public:
  // Errors: kBadInput where the ranks and micro-batches do not divide the batch.
  static Result<Batches> Make(TokenFiles files, const DeviceMesh& mesh, const BatchOptions& options);

  // This rank's rows of micro-batch `micro` of the next step.
  Batch Next(int64_t micro) const;
  void EndStep() { rows_ += options_.batch; }

  // The index of this rank among those with different rows.
  int64_t place() const { return place_; }
  // Tokens of one step, over all ranks.
  int64_t tokens_per_step() const { return options_.batch * files_.sequence(); }
  // As a small JSON text: the rows taken so far, the order's seed and what the data was.
  std::string Position() const;
  // Resumes from there. Errors: kBadInput for a position in other data, or under another seed or sequence, each by
  // name; with `accept` these are warnings, and the rows taken are counted in the data as it is now.
  Diagnostics Seek(const std::string& position, bool accept);

  // Parts of `batch` rows each that cover every window once, in the order of the files; the last is filled up with rows
  // without targets. This rank's share of part `i`: for a loss on data that is not trained on.
  int64_t parts() const { return (files_.windows() + options_.batch - 1) / options_.batch; }
  Batch Part(int64_t i) const;

 private:
  Batches(TokenFiles files, const DeviceMesh& mesh, const BatchOptions& options);
  Batch Empty() const;
  void ReadRow(int64_t window, const Batch& batch, int64_t row) const;

  TokenFiles files_;
  BatchOptions options_;
  c10::Device device_;
  int64_t place_;  // among the data-parallel ranks
  int64_t ranks_;
  int64_t rows_ = 0;  // taken so far
};

}  // namespace moonshard

// Batches: the rows of the data that a rank trains on in each step. Their order depends only on the data and a seed:
// each pass over the windows is one permutation of them. A step takes the next `batch` rows, splits them into
// micro-batches, and splits each micro-batch into the shares of the data-parallel ranks. The global batches are
// therefore the same for any number of ranks and of micro-batches, and ranks that share their data (tp) get the same
// rows.
// Stage before: token_files.h. Stage after: the training step.
#pragma once

#include <cstdint>
#include <string>

#include "dsl/commands/train/token_files.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

// Rows of ids, and the ids that follow them as targets: int64 [rows, sequence] each, on the mesh's device. A target of
// -100 is ignored.
struct Batch {
  at::Tensor ids;
  at::Tensor targets;
};

struct BatchOptions {
  int64_t batch = 1;          // rows of a step, over all ranks
  int64_t micro_batches = 1;  // micro-batches that a rank processes one after another
  uint64_t seed = 0;
};

class Batches {
 public:
  // Errors: kBadInput if the batch is not divisible by the number of data-parallel ranks times micro-batches.
  static Result<Batches> Make(TokenFiles files, const DeviceMesh& mesh, const BatchOptions& options);

  // This rank's rows of micro-batch `micro` of the next step.
  Batch Next(int64_t micro) const;
  // Moves the position to the next step.
  void EndStep() { rows_ += options_.batch; }

  // The data-parallel index of this rank. Ranks with the same index get the same rows.
  int64_t place() const { return place_; }
  // Tokens of one step, over all ranks.
  int64_t tokens_per_step() const { return options_.batch * files_.sequence(); }
  // The position as a JSON text: the rows taken so far, the seed, the sequence length and the identity of the data.
  std::string Position() const;
  // Resumes from a position. Errors: kBadInput, one for each of data, sequence length and seed that differs from the
  // saved value; with `accept` these are warnings, and the run continues at the saved number of rows in the current
  // data.
  Diagnostics Seek(const std::string& position, bool accept);

  // For a loss on held-out data: the windows in the order of the files, divided into parts of `batch` rows. The last
  // part is filled up with rows whose targets are all ignored. Part() returns this rank's rows of part `i`.
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

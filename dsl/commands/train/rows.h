// Rows: where the rows of the batches come from: numbered rows of named tensors, which are read from files when they
// are needed. TokenFiles cuts rows from files of tokens; ExampleFiles has the rows of files whose tensors are the
// inputs of an exported program.
// Stage after: batches.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dsl/embed/moonshard.h"

namespace moonshard {

// Tensors by name, all with the same first dim: the rows.
using NamedTensors = std::map<std::string, at::Tensor>;

class Rows {
 public:
  virtual ~Rows() = default;

  virtual int64_t count() const = 0;
  // Tensors on the CPU for this number of rows. A row into which nothing was read has no counted label, if fills().
  virtual NamedTensors Allocate(int64_t rows) const = 0;
  // Reads row `row` of the data into row `at` of `to`, a result of Allocate. Several threads may read. Throws
  // PlanError: kFileUnreadable, and kBadInput for an id outside the vocabulary.
  virtual void Read(int64_t row, const NamedTensors& to, int64_t at) const = 0;
  // The number of labels of these rows that the loss counts, by which the loss of the rows is weighted. If it is 0,
  // replaces labels such that the loss of the rows is a finite number, not the mean over nothing; its weight is 0.
  virtual int64_t Count(NamedTensors& rows) const = 0;

  // Whether a row that was not read may be part of a batch, because the loss does not count it.
  virtual bool fills() const = 0;
  // Whether every row has the same number of counted labels.
  virtual bool even() const = 0;
  // What a row consists of: "tokens" or "examples", and their number.
  virtual std::string unit() const = 0;
  virtual int64_t units_per_row() const = 0;
  // The length of a row of tokens; nullopt for examples.
  virtual std::optional<int64_t> sequence() const = 0;
  // The identity of the data, for comparison.
  virtual std::string Describe() const = 0;
};

// The files of a path: the path itself, or the files of a directory, except hidden ones, in the order of their names.
std::vector<std::string> FilesOf(const std::string& path);

// Sets `hash` to a hash of the file's length and its first and last 4 MiB. Errors: kFileUnreadable.
std::optional<Diagnostic> HashEnds(const File& file, uint64_t& hash);

// An error (kBadInput) of the data in the file or directory `path`.
Diagnostic BadData(const std::string& path, const std::string& message, const std::string& required);

}  // namespace moonshard

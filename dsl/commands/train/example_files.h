// ExampleFiles: training data for programs that take more than tokens. The tensors of a file are the inputs of the
// program by name (input_ids, attention_mask, pixel_values, labels), one example per row: element i of the first dim of
// every tensor belongs to example i. Files are in safetensors; a row is read at its offset, and no file is read as a
// whole.
// Stage before: rows.h. Stage after: batches.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsl/commands/train/rows.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

// What --data names.
enum class DataKind : uint8_t { kTokens, kExamples };

// Returns kExamples if every file is a safetensors file without a 1-D tensor `tokens`, and kTokens if none is; a file
// that cannot be opened counts as tokens, because TokenFiles reports it. Errors (kBadInput): files of both kinds.
Result<DataKind> KindOfData(const std::vector<std::string>& paths);

struct ExampleOptions {
  std::vector<ProgramInput> inputs;  // of all archives of the program (InputsOf)
  CountedLabels counted;             // which labels the program's loss counts
  int64_t vocabulary = 0;            // ids are below this number; 0: not checked
};

class ExampleFiles final : public Rows {
 public:
  // `paths`: files and directories, as of TokenFiles. If the ids and labels of all files are up to 64 million together,
  // all are checked here, else each is checked when it is read. Errors, of all files at once: those of
  // Checkpoint::OpenFile and CheckInputs; kBadInput: a tensor without dims, tensors of different numbers of rows, no
  // rows, a dtype that tensors cannot have, another shape or dtype than in the first file, ids outside the vocabulary.
  static Result<std::shared_ptr<const ExampleFiles>> Open(const std::vector<std::string>& paths,
                                                          const ExampleOptions& options);

  int64_t count() const override { return rows_; }
  NamedTensors Allocate(int64_t rows) const override;
  void Read(int64_t row, const NamedTensors& to, int64_t at) const override;
  // Labels of integers: those that the loss counts, without the first of each row if the loss is of the next tokens.
  // Other labels: their elements. Without labels: the rows. Ignored labels that must be replaced become 0.
  int64_t Count(NamedTensors& rows) const override;
  // A program gets no rows that are in no file: it may compute more from them than a loss that ignores labels.
  bool fills() const override { return false; }
  bool even() const override;
  std::string unit() const override { return "examples"; }
  int64_t units_per_row() const override { return 1; }
  std::optional<int64_t> sequence() const override { return std::nullopt; }
  // A line for each file with its name, its number of rows, and a hash of its length and its first and last 4 MiB.
  std::string Describe() const override;

  // Bytes of one row, over all tensors.
  int64_t row_bytes() const;

 private:
  struct Column {
    std::vector<int64_t> shape;  // of one row
    DType dtype = DType::kF32;
    size_t input = 0;  // index in options.inputs
    uint64_t bytes = 0;
  };
  struct Source {
    File file;
    std::map<std::string, uint64_t> offsets;  // of the first row of each tensor
    int64_t rows = 0;
    int64_t first_row = 0;
    uint64_t hash = 0;
  };

  explicit ExampleFiles(ExampleOptions options) : options_(std::move(options)) {}
  std::optional<Source> OpenOne(const std::string& path, Diagnostics& diagnostics);
  // Reads `count` rows of one tensor from row `begin` of the file. Returns kFileUnreadable, or the error of CheckIds.
  std::optional<Diagnostic> ReadColumn(const Source& source, const std::string& name, int64_t begin,
                                       const at::Tensor& to) const;
  std::optional<Diagnostic> LookInto(const Source& source) const;
  bool IsChecked(const Column& column) const;

  ExampleOptions options_;
  std::map<std::string, Column> columns_;  // of the first file
  std::vector<Source> sources_;
  int64_t rows_ = 0;
};

}  // namespace moonshard

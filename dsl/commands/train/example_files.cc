#include "dsl/commands/train/example_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <ATen/Functions.h>

namespace moonshard {
namespace {

constexpr int64_t kLookedInto = int64_t{1} << 26;  // ids and labels that are looked into before the first step
constexpr int64_t kBlock = int64_t{1} << 16;       // of them read at a time for that

std::string Text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t size : shape) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return "[" + out + "]";
}

bool HasTokens(const std::string& path) {
  if (!path.ends_with(".safetensors")) return true;
  const Result<Checkpoint> file = Checkpoint::OpenFile(path);
  if (!file.ok()) return true;
  const StoredTensor* tokens = file.value().Find("tokens");
  return tokens != nullptr && tokens->shape.size() == 1;
}

}  // namespace

Result<DataKind> KindOfData(const std::vector<std::string>& paths) {
  std::optional<std::string> tokens;
  std::optional<std::string> examples;
  for (const std::string& path : paths) {
    for (const std::string& file : FilesOf(path)) {
      std::optional<std::string>& first = HasTokens(file) ? tokens : examples;
      if (!first) first = file;
    }
  }
  if (!examples) return DataKind::kTokens;
  if (!tokens) return DataKind::kExamples;
  Diagnostic d = BadData(*examples, "the data has files of tokens and files of examples",
                         "files of one kind: all with a 1-D tensor `tokens`, or none");
  d.declared = "'" + *tokens + "' is a file of tokens, and '" + *examples + "' has no 1-D tensor `tokens`";
  return d;
}

std::optional<ExampleFiles::Source> ExampleFiles::OpenOne(const std::string& path, Diagnostics& diagnostics) {
  std::optional<File> file = File::Open(path).Collect(diagnostics);
  if (!file) return std::nullopt;
  const std::optional<Checkpoint> tensors = Checkpoint::OpenFile(path).Collect(diagnostics);
  if (!tensors) return std::nullopt;
  Source source{std::move(*file), {}, -1, 0, 0};
  Diagnostics errors;
  std::map<std::string, Column> columns;
  std::map<std::string, c10::ScalarType> types;
  std::string first;  // the tensor whose rows the others must have
  for (const StoredTensor& tensor : tensors->tensors()) {
    const std::optional<c10::ScalarType> type = ScalarTypeOf(tensor.dtype);
    if (!type || tensor.shape.empty()) {
      errors.push_back(BadData(
          path, "'" + tensor.name + "' " + (type ? "has no dims" : "is of type " + std::string(ToString(tensor.dtype))),
          "a tensor whose first dim is the examples"));
      continue;
    }
    types[tensor.name] = *type;
    if (source.rows < 0) {
      source.rows = tensor.shape[0];
      first = tensor.name;
    } else if (tensor.shape[0] != source.rows) {
      errors.push_back(BadData(path,
                               "'" + tensor.name + "' has " + std::to_string(tensor.shape[0]) + " rows, and '" + first +
                                   "' has " + std::to_string(source.rows),
                               "the same number of rows in all tensors: one for each example"));
    }
    const auto input = std::ranges::find(options_.inputs, tensor.name, &ProgramInput::name);
    columns[tensor.name] = {{tensor.shape.begin() + 1, tensor.shape.end()},
                            tensor.dtype,
                            static_cast<size_t>(input - options_.inputs.begin()),
                            tensor.shape[0] > 0 ? tensor.bytes / static_cast<uint64_t>(tensor.shape[0]) : 0};
    source.offsets[tensor.name] = tensor.begin;
  }
  const Diagnostics names = CheckInputs(options_.inputs, types, path);
  errors.insert(errors.end(), names.begin(), names.end());
  if (errors.empty() && source.rows <= 0) errors.push_back(BadData(path, "the file has no rows", "examples"));
  if (errors.empty() && columns_.empty()) columns_ = columns;
  if (errors.empty()) {
    for (const auto& [name, column] : columns_) {
      const auto here = columns.find(name);
      const auto text = [](const Column& one) { return std::string(ToString(one.dtype)) + " " + Text(one.shape); };
      if (here != columns.end() && here->second.shape == column.shape && here->second.dtype == column.dtype) continue;
      errors.push_back(BadData(path,
                               here == columns.end() ? "the file has no '" + name + "', which the first file has"
                                                     : "a row of '" + name + "' is " + text(here->second) +
                                                           ", in the first file it is " + text(column),
                               "the same tensors in all files: equal names, dtypes, and shapes of a row"));
    }
    for (const auto& [name, column] : columns) {
      if (columns_.contains(name)) continue;
      errors.push_back(BadData(path, "the file has '" + name + "', which the first file has not",
                               "the same tensors in all files: equal names, dtypes, and shapes of a row"));
    }
  }
  if (errors.empty()) {
    if (auto error = HashEnds(source.file, source.hash)) errors.push_back(*std::move(error));
  }
  const bool good = errors.empty();
  std::ranges::move(errors, std::back_inserter(diagnostics));
  return good ? std::optional(std::move(source)) : std::nullopt;
}

Result<std::shared_ptr<const ExampleFiles>> ExampleFiles::Open(const std::vector<std::string>& paths,
                                                               const ExampleOptions& options) {
  Diagnostics diagnostics;
  const std::shared_ptr<ExampleFiles> out(new ExampleFiles(options));
  for (const std::string& path : paths) {
    for (const std::string& file : FilesOf(path)) {
      std::optional<Source> source = out->OpenOne(file, diagnostics);
      if (!source) continue;
      source->first_row = out->rows_;
      out->rows_ += source->rows;
      out->sources_.push_back(std::move(*source));
    }
  }
  int64_t looked_into = 0;
  for (const auto& [name, column] : out->columns_) {
    if (out->IsChecked(column)) looked_into += out->rows_ * c10::multiply_integers(column.shape);
  }
  if (diagnostics.empty() && looked_into <= kLookedInto) {
    for (const Source& source : out->sources_) {
      if (auto error = out->LookInto(source)) diagnostics.push_back(*std::move(error));
    }
  }
  if (HasErrors(diagnostics)) return diagnostics;
  return Result<std::shared_ptr<const ExampleFiles>>(out, std::move(diagnostics));
}

bool ExampleFiles::IsChecked(const Column& column) const {
  const ProgramInput& input = options_.inputs[column.input];
  return input.kind == "ids" || input.kind == "labels" || input.name == options_.counted.input;
}

std::optional<Diagnostic> ExampleFiles::ReadColumn(const Source& source, const std::string& name, int64_t begin,
                                                   const at::Tensor& to) const {
  const Column& column = columns_.at(name);
  const uint64_t offset = source.offsets.at(name) + static_cast<uint64_t>(begin) * column.bytes;
  if (auto error = source.file.Read(offset, to.mutable_data_ptr(), to.nbytes())) return error;
  if (!IsChecked(column)) return std::nullopt;
  return CheckIds(options_.inputs[column.input], to, options_.vocabulary, options_.counted, source.file.path(), begin);
}

std::optional<Diagnostic> ExampleFiles::LookInto(const Source& source) const {
  for (const auto& [name, column] : columns_) {
    if (!IsChecked(column)) continue;
    const int64_t of_row = std::max<int64_t>(c10::multiply_integers(column.shape), 1);
    const int64_t most = std::max<int64_t>(kBlock / of_row, 1);
    for (int64_t begin = 0; begin < source.rows; begin += most) {
      std::vector<int64_t> shape = column.shape;
      shape.insert(shape.begin(), std::min(most, source.rows - begin));
      const at::Tensor block = at::empty(shape, *ScalarTypeOf(column.dtype));
      if (auto error = ReadColumn(source, name, begin, block)) return error;
    }
  }
  return std::nullopt;
}

NamedTensors ExampleFiles::Allocate(int64_t rows) const {
  NamedTensors out;
  for (const auto& [name, column] : columns_) {
    std::vector<int64_t> shape = column.shape;
    shape.insert(shape.begin(), rows);
    out[name] = at::zeros(shape, *ScalarTypeOf(column.dtype));
  }
  return out;
}

void ExampleFiles::Read(int64_t row, const NamedTensors& to, int64_t at) const {
  auto source = std::ranges::upper_bound(sources_, row, {}, &Source::first_row);
  --source;
  Diagnostics errors;
  for (const auto& [name, tensor] : to) {
    if (auto error = ReadColumn(*source, name, row - source->first_row, tensor.narrow(0, at, 1)))
      errors.push_back(*std::move(error));
  }
  if (!errors.empty()) throw PlanError(std::move(errors));
}

bool ExampleFiles::even() const {
  const auto labels = columns_.find(options_.counted.input);
  return labels == columns_.end() || at::isFloatingType(*ScalarTypeOf(labels->second.dtype));
}

int64_t ExampleFiles::Count(NamedTensors& rows) const {
  const auto found = rows.find(options_.counted.input);
  if (found == rows.end()) return rows.empty() ? 0 : rows.begin()->second.size(0);
  at::Tensor& labels = found->second;
  if (at::isFloatingType(labels.scalar_type())) return labels.numel();
  labels = labels.to(at::kLong);
  const auto of = [&](const at::Tensor& counted) { return counted.ne(options_.counted.ignored).sum().item<int64_t>(); };
  const int64_t last = labels.dim() - 1;
  const bool shifted = options_.counted.shifted && last > 0;
  const int64_t count = of(shifted ? labels.slice(last, 1) : labels);
  if (count == 0) labels = labels.masked_fill(labels == options_.counted.ignored, 0);
  return count;
}

int64_t ExampleFiles::row_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, column] : columns_) bytes += static_cast<int64_t>(column.bytes);
  return bytes;
}

std::string ExampleFiles::Describe() const {
  std::string out;
  for (const Source& source : sources_) {
    out += std::filesystem::path(source.file.path()).filename().string() + " " + std::to_string(source.rows) + " " +
           HashToText(source.hash) + "\n";
  }
  return out;
}

}  // namespace moonshard

#include "dsl/commands/run/tensor_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"
#include "engine/runtime/dtype/scalar_type.h"

namespace moonshard {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

Diagnostic BadInput(const std::string& path, const std::string& message) {
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, message);
  d.path = path;
  d.required = "an object of rectangular lists of integers, as in {\"input_ids\": [[1, 2, 3]]}";
  return d;
}

// Appends the numbers of a nested list to `values` and its sizes to `shape`; false where it is not rectangular.
bool Flatten(const JsonValue& value, size_t depth, std::vector<int64_t>& shape, std::vector<int64_t>& values) {
  if (value.is_int()) {
    values.push_back(value.AsInt());
    return depth == shape.size();
  }
  if (!value.is_array()) return false;
  const auto size = static_cast<int64_t>(value.AsArray().size());
  if (depth == shape.size()) {
    if (!values.empty()) return false;
    shape.push_back(size);
  }
  if (shape[depth] != size) return false;
  for (const JsonValue& element : value.AsArray()) {
    if (!Flatten(element, depth + 1, shape, values)) return false;
  }
  return true;
}

Result<Tensors> FromJson(const std::string& path) {
  Result<JsonValue> json = ReadJsonFile(path);
  if (!json.ok()) return json.diagnostics();
  if (!json.value().is_object()) return BadInput(path, "the file is not a JSON object");
  Tensors out;
  for (const auto& [name, value] : json.value().AsObject()) {
    std::vector<int64_t> shape;
    std::vector<int64_t> values;
    if (!value.is_array() || !Flatten(value, 0, shape, values)) {
      return BadInput(path, "'" + name + "' is not a rectangular list of integers");
    }
    out[name] = at::tensor(values, at::TensorOptions().dtype(c10::kLong)).view(shape);
  }
  return out;
}

Result<Tensors> FromSafetensors(const std::string& path) {
  Result<Checkpoint> file = Checkpoint::OpenFile(path);
  if (!file.ok()) return file.diagnostics();
  ShardReader reader(file.value());
  Tensors out;
  for (const StoredTensor& stored : file.value().tensors()) {
    const std::optional<c10::ScalarType> type = ScalarTypeOf(stored.dtype);
    if (!type) return BadInput(path, "tensors of dtype " + std::string(ToString(stored.dtype)) + " are not supported");
    at::Tensor tensor = at::empty(stored.shape, at::TensorOptions().dtype(*type));
    if (std::optional<Diagnostic> error = reader.ReadFull(stored, tensor.mutable_data_ptr())) return *error;
    out[stored.name] = std::move(tensor);
  }
  return out;
}

}  // namespace

Result<Tensors> ReadTensorFile(const std::string& path) {
  return path.ends_with(".json") ? FromJson(path) : FromSafetensors(path);
}

}  // namespace moonshard

#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"

#include <algorithm>
#include <limits>

#include <torch/types.h>

#include "engine/io/safetensors/checkpoint.h"
#include "engine/io/safetensors/reader.h"

namespace moonshard::test {
namespace {

at::ScalarType TorchType(DType dtype) {
  switch (dtype) {
    case DType::kF32: return at::kFloat;
    case DType::kBF16: return at::kBFloat16;
    case DType::kF64: return at::kDouble;
    case DType::kI64: return at::kLong;
    default: throw std::runtime_error(std::string("no fixture has dtype ") + ToString(dtype));
  }
}

}  // namespace

std::vector<std::filesystem::path> ParityFolders() {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath("tests/parity"))) {
    if (std::filesystem::exists(entry.path() / "config.json")) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

NamedTensors ReadTensors(const std::filesystem::path& path) {
  const bool full_folder = std::filesystem::is_directory(path);
  const Checkpoint checkpoint =
      (full_folder ? Checkpoint::Open(path.string()) : Checkpoint::OpenFile(path.string())).ValueOrThrow();
  ShardReader reader(checkpoint);
  NamedTensors tensors;
  for (const StoredTensor& stored : checkpoint.tensors()) {
    at::Tensor tensor = torch::empty(stored.shape, TorchType(stored.dtype));
    if (auto error = reader.ReadFull(stored, tensor.data_ptr())) throw PlanError({*error});
    tensors[stored.name] = tensor;
  }
  return tensors;
}

JsonValue ReadConfig(const std::filesystem::path& folder) {
  return ReadJsonFile((folder / "config.json").string()).ValueOrThrow();
}

double RelativeError(const at::Tensor& found, const at::Tensor& expected) {
  constexpr double kNoMatch = std::numeric_limits<double>::infinity();
  if (found.sizes() != expected.sizes() || !found.isfinite().all().item<bool>()) return kNoMatch;
  const double largest = expected.abs().max().item<double>();
  const double difference = (found - expected).abs().max().item<double>();
  return largest == 0 ? (difference == 0 ? 0 : kNoMatch) : difference / largest;
}

}  // namespace moonshard::test

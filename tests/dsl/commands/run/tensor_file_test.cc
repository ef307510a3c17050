#include "dsl/commands/run/tensor_file.h"

#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "engine/io/safetensors/writer.h"
#include "tests/support/process.h"

namespace moonshard {
namespace {

// A path of this test's own, removed at the end.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& ending) : name_("file" + ending) {}
  std::string path() const { return folder_ / name_; }
  void Write(const std::string& text) const { folder_.Write(name_, text); }

 private:
  test::ScratchFolder folder_;
  std::string name_;
};

TEST_CASE("JSON inputs are rectangular lists of integers") {
  const TemporaryFile file(".json");
  file.Write(R"({"input_ids": [[1, 2, 3], [4, 5, 6]], "labels": [[-100, 2, 3], [4, 5, 6]], "empty": []})");
  const std::map<std::string, at::Tensor> tensors = ReadTensorFile(file.path()).ValueOrThrow();
  CHECK(tensors.size() == 3);
  CHECK(at::equal(tensors.at("input_ids"), at::arange(1, 7).view({2, 3})));
  CHECK(tensors.at("labels")[0][0].item<int64_t>() == -100);
  CHECK(tensors.at("empty").sizes() == at::IntArrayRef({0}));
}

TEST_CASE("other JSON is refused by name") {
  const std::string text = GENERATE(as<std::string>(), R"({"a": [[1, 2], [3]]})", R"({"a": [[1], 2]})",
                                    R"({"a": [1, [2]]})", R"({"a": 1})", R"({"a": [1.5]})", R"({"a": ["x"]})");
  const TemporaryFile file(".json");
  file.Write(text);
  CAPTURE(text);
  const Result<std::map<std::string, at::Tensor>> result = ReadTensorFile(file.path());
  REQUIRE_FALSE(result.ok());
  CHECK(result.diagnostics().front().message == "'a' is not a rectangular list of integers");
}

TEST_CASE("safetensors come back with type and shape") {
  const TemporaryFile file(".safetensors");
  const at::Tensor half = at::arange(6).view({2, 3}).to(at::kBFloat16);
  const at::Tensor scalar = at::scalar_tensor(2.5);
  REQUIRE_FALSE(WriteSafetensors(file.path(), {{{"half", DType::kBF16, {2, 3}}, half.const_data_ptr()},
                                               {{"loss", DType::kF32, {}}, scalar.const_data_ptr()}}));
  const std::map<std::string, at::Tensor> tensors = ReadTensorFile(file.path()).ValueOrThrow();
  CHECK(at::equal(tensors.at("half"), half));
  CHECK(tensors.at("half").scalar_type() == at::kBFloat16);
  CHECK(tensors.at("loss").dim() == 0);
  CHECK(tensors.at("loss").item<float>() == 2.5F);
}

TEST_CASE("a file that is not there is an error") {
  CHECK(ReadTensorFile("/nowhere/x.safetensors").diagnostics().front().finding == Finding::kFileNotFound);
  CHECK(ReadTensorFile("/nowhere/x.json").diagnostics().front().finding == Finding::kFileNotFound);
}

}  // namespace
}  // namespace moonshard

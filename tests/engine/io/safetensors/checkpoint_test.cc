// Model directories, whole and broken: each fault is named with its file and tensor, all of them at once.
#include "engine/io/safetensors/checkpoint.h"

#include <catch2/catch.hpp>
#include <ctime>
#include <filesystem>

#include "engine/io/safetensors/index.h"
#include "tests/engine/io/safetensors/files.h"

using namespace moonshard;

namespace {

struct Fault {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;  // name, bytes
  std::vector<std::pair<Finding, std::string>> errors;     // finding, part of its text; all there are
};

std::string OneByte(const std::string& name) {
  return SafetensorsBytes("{" + Entry(name, "U8", "[1]", 0, 1) + "}", "x");
}

std::string Index(const std::string& map) { return "{\"metadata\":{\"total_size\":2},\"weight_map\":{" + map + "}}"; }

}  // namespace

TEST_CASE("a directory with one file") {
  TestFolder folder;
  folder.Write("model.safetensors",
               SafetensorsBytes("{\"__metadata__\":{\"format\":\"pt\"}," + Entry("b.weight", "BF16", "[2,1]", 0, 4) +
                                    "," + Entry("a", "F32", "[]", 4, 8) + "}",
                                "01234567"));
  const Checkpoint checkpoint = Checkpoint::Open(folder.path()).ValueOrThrow();
  REQUIRE(checkpoint.tensors().size() == 2);
  CHECK(checkpoint.tensors()[0].name == "a");
  const StoredTensor* b = checkpoint.Find("b.weight");
  REQUIRE(b);
  CHECK(b->dtype == DType::kBF16);
  CHECK(b->shape == std::vector<int64_t>{2, 1});
  CHECK(b->bytes == 4);
  CHECK(ReadAll(checkpoint.files()[b->file].path).substr(b->begin, b->bytes) == "0123");
  CHECK(checkpoint.files()[0].metadata.at("format") == "pt");
  CHECK(checkpoint.Find("b") == nullptr);
  CHECK(checkpoint.Find("c") == nullptr);
}

TEST_CASE("a directory with an index") {
  TestFolder folder;
  std::filesystem::create_directories(folder / "sub");
  folder.Write("sub/two.safetensors", OneByte("a"));
  folder.Write("one.safetensors", OneByte("b"));
  folder.Write("model.safetensors.index.json", Index(R"("a":"sub/two.safetensors","b":"one.safetensors")"));
  const Checkpoint checkpoint = Checkpoint::Open(folder.path()).ValueOrThrow();
  REQUIRE(checkpoint.tensors().size() == 2);
  CHECK(checkpoint.files()[checkpoint.Find("a")->file].path == folder / "sub/two.safetensors");
  CHECK(checkpoint.files()[checkpoint.Find("b")->file].path == folder / "one.safetensors");
  CHECK_FALSE(checkpoint.header_only());
  // One whole file counts before an index, as in transformers.
  folder.Write("model.safetensors", OneByte("c"));
  CHECK(Checkpoint::Open(folder.path()).ValueOrThrow().Find("c"));
}

TEST_CASE("faults of a directory") {
  const std::string index = "model.safetensors.index.json";
  const std::vector<Fault> faults = {
      {"nothing", {}, {{Finding::kFileNotFound, "there is no checkpoint in"}}},
      {"index is no JSON", {{index, "{"}}, {{Finding::kBadJson, index + ":1: error"}}},
      {"no weight_map", {{index, "{}"}}, {{Finding::kBadIndex, "the index has no weight_map"}}},
      {"index is an array", {{index, "[]"}}, {{Finding::kBadIndex, "the index has no weight_map"}}},
      {"weight_map is a list",
       {{index, R"({"weight_map":[]})"}},
       {{Finding::kBadIndex, "weight_map has the type array"}}},
      {"a tensor twice in the index",
       {{index, Index(R"("a":"x","a":"y")")}},
       {{Finding::kBadJson, "key 'a' is duplicated"}}},
      {"a file that is not a string",
       {{index, Index(R"("a":1,"b":null)")}},
       {{Finding::kBadIndex, "file of tensor 'a' is not a string"},
        {Finding::kBadIndex, "file of tensor 'b' is not a string"}}},
      {"files outside the directory",
       {{index,
         Index(R"("a":"../x","b":"/etc/passwd","c":"","d":"s/../../y","e":"..","f":"./x","g":"sub/","h":"x\u0000")")}},
       {{Finding::kBadIndex, "'../x', which is not a plain path within the index's directory"},
        {Finding::kBadIndex, "'/etc/passwd'"},
        {Finding::kBadIndex, "''"},
        {Finding::kBadIndex, "'s/../../y'"},
        {Finding::kBadIndex, "'..'"},
        {Finding::kBadIndex, "'./x'"},
        {Finding::kBadIndex, "'sub/'"},
        {Finding::kBadIndex, "'x\\u0000'"}}},
      {"missing shards, each once",
       {{index, Index(R"("a":"1.safetensors","b":"2.safetensors","c":"1.safetensors","d":"3.safetensors")")},
        {"3.safetensors", OneByte("d")}},
       {{Finding::kFileNotFound, "1.safetensors' is missing"}, {Finding::kFileNotFound, "2.safetensors' is missing"}}},
      {"a tensor that is not where the index says",
       {{index, Index(R"("a":"1.safetensors","b":"2.safetensors")")},
        {"1.safetensors", OneByte("b")},
        {"2.safetensors", SafetensorsBytes("{}")}},
       {{Finding::kBadIndex, "assigns tensor 'a' to a file that does not contain it"},
        {Finding::kBadIndex, "assigns tensor 'b' to a file that does not contain it"}}},
      {"a tensor in two files",
       {{index, Index(R"("a":"1.safetensors","b":"2.safetensors")")},
        {"1.safetensors", OneByte("a")},
        {"2.safetensors",
         SafetensorsBytes("{" + Entry("a", "U8", "[1]", 0, 1) + "," + Entry("b", "U8", "[1]", 1, 2) + "}", "xy")}},
       {{Finding::kBadIndex, "tensor 'a' is in two files"}}},
      {"broken shards, with what else is wrong",
       {{index, Index(R"("a":"1.safetensors","b":"2.safetensors","c":"3.safetensors","d":"4.safetensors")")},
        {"1.safetensors", OneByte("a").substr(0, 20)},
        {"2.safetensors", OneByte("b") + "!"},
        {"4.safetensors", OneByte("d").substr(0, OneByte("d").size() - 1)}},
       {{Finding::kBadSafetensors, "1.safetensors: error"},
        {Finding::kBadSafetensors, "continues after its last tensor"},
        {Finding::kFileNotFound, "3.safetensors' is missing"},
        {Finding::kBadSafetensors, "the file contains only the header"}}},
  };
  for (const Fault& fault : faults) {
    TestFolder folder;
    for (const auto& [name, bytes] : fault.files) folder.Write(name, bytes);
    const Result<Checkpoint> result = Checkpoint::Open(folder.path());
    CAPTURE(fault.name, ToText(result.diagnostics()));
    REQUIRE_FALSE(result.ok());
    REQUIRE(result.diagnostics().size() == fault.errors.size());
    for (size_t i = 0; i < fault.errors.size(); ++i) {
      CHECK(result.diagnostics()[i].finding == fault.errors[i].first);
      CHECK_THAT(result.diagnostics()[i].ToText(), Catch::Contains(fault.errors[i].second));
    }
  }
  CHECK_THAT(ToText(Checkpoint::Open("/nowhere").diagnostics()), Catch::Contains("there is no directory '/nowhere'"));
}

TEST_CASE("a tensor that the index does not know is taken with a warning") {
  TestFolder folder;
  folder.Write("1.safetensors",
               SafetensorsBytes("{" + Entry("a", "U8", "[1]", 0, 1) + "," + Entry("b", "U8", "[1]", 1, 2) + "}", "xy"));
  folder.Write("model.safetensors.index.json", Index(R"("a":"1.safetensors")"));
  const Result<Checkpoint> result = Checkpoint::Open(folder.path());
  REQUIRE(result.ok());
  CHECK(result.value().Find("b"));
  REQUIRE(result.diagnostics().size() == 1);
  CHECK(result.diagnostics()[0].severity == Severity::kWarning);
  CHECK_THAT(result.diagnostics()[0].message, Catch::Contains("does not list tensor 'b'"));
}

TEST_CASE("shards may be links to anywhere") {
  TestFolder blobs;
  TestFolder folder;
  blobs.Write("0a1b", OneByte("a"));
  std::filesystem::create_symlink(blobs / "0a1b", folder / "1.safetensors");
  folder.Write("model.safetensors.index.json", Index(R"("a":"1.safetensors")"));
  CHECK(Checkpoint::Open(folder.path()).ok());
}

TEST_CASE("a directory in the shape of Llama 3.1 405B opens at once") {
  TestFolder folder;
  const int layers = 126;
  std::vector<std::pair<std::string, std::string>> tensors;  // name, shape
  const std::string h = "16384";
  tensors.emplace_back("model.embed_tokens.weight", "[128256," + h + "]");
  for (int i = 0; i < layers; ++i) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    for (const char* name : {"input_layernorm", "post_attention_layernorm"})
      tensors.emplace_back(at + name + ".weight", "[" + h + "]");
    for (const char* name : {"q", "o"})
      tensors.emplace_back(at + "self_attn." + name + "_proj.weight", "[" + h + "," + h + "]");
    for (const char* name : {"k", "v"})
      tensors.emplace_back(at + "self_attn." + name + "_proj.weight", "[1024," + h + "]");
    for (const char* name : {"gate", "up"})
      tensors.emplace_back(at + "mlp." + name + "_proj.weight", "[53248," + h + "]");
    tensors.emplace_back(at + "mlp.down_proj.weight", "[" + h + ",53248]");
  }
  tensors.emplace_back("model.norm.weight", "[" + h + "]");
  tensors.emplace_back("lm_head.weight", "[128256," + h + "]");
  const size_t shards = 191;
  std::string map;
  for (size_t s = 0; s < shards; ++s) {
    const std::string file = "model-" + std::to_string(s) + ".safetensors";
    std::string header = "{";
    uint64_t at = 0;
    for (size_t t = tensors.size() * s / shards; t < tensors.size() * (s + 1) / shards; ++t) {
      uint64_t bytes = 2;
      const std::string& shape = tensors[t].second;
      const size_t comma = shape.find(',');
      bytes *= std::stoull(shape.substr(1));
      if (comma != std::string::npos) bytes *= std::stoull(shape.substr(comma + 1));
      header += (header.size() > 1 ? "," : "") + Entry(tensors[t].first, "BF16", shape, at, at + bytes);
      at += bytes;
      map += (map.empty() ? "\"" : ",\"") + tensors[t].first + "\":\"" + file + "\"";
    }
    folder.Write(file, SafetensorsBytes(header + "}"));
  }
  folder.Write("model.safetensors.index.json", Index(map));
  const std::clock_t begin = std::clock();  // CPU time: wall time would measure what else the machine does
  const Result<Checkpoint> result = Checkpoint::Open(folder.path(), {.allow_header_only = true});
  const double milliseconds = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  REQUIRE(result.ok());
  CHECK(result.value().tensors().size() == 1137);
  CHECK(result.value().header_only());
  CAPTURE(milliseconds);
  CHECK(milliseconds < 300);
  CHECK_FALSE(Checkpoint::Open(folder.path()).ok());
}

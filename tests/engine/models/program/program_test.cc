// Programs by themselves: what is refused, and with which words; what a call of a module is.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "engine/graph/call_tree.h"
#include "engine/io/exported_program/program_archive.h"
#include "engine/models/program/compile_program.h"
#include "engine/models/program/program.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/defer_init.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/io/exported_program/stored_zip.h"
#include "tests/engine/models/fixture.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

const std::filesystem::path kFixtures = std::filesystem::path(SourcePath("tests/parity/programs"));

std::string WordsOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

at::Tensor Ids(int64_t batch, int64_t length) {
  return at::arange(batch * length, at::TensorOptions().dtype(at::kLong)).remainder(40).view({batch, length}) + 2;
}

// With the checkpoint's values, without a plan.
std::shared_ptr<Program> Loaded(const std::string& name) {
  auto program = Program::Open(kFixtures / name / "program.pt2");
  const NamedTensors values = ReadTensors(kFixtures / name / "model.safetensors");
  for (auto& parameter : program->named_parameters()) {
    const auto found = values.find(parameter.key());
    if (found != values.end()) nn::Materialize(parameter.value(), found->second);
  }
  return program;
}

TEST_CASE("lengths that a program does not hold for are refused, with those that it does") {
  const std::shared_ptr<Program> program = Loaded("qwen3_5");
  const std::string words = WordsOf([&] { program->forward(Ids(2, 80), Ids(2, 80)); });
  CHECK_THAT(words, Contains("MS0515"));
  CHECK_THAT(words, Contains("1 to 64"));
  CHECK_THAT(words, Contains("dim 1 of 'input_ids' = 80"));
  CHECK_THAT(words, Contains("--lengths"));
  CHECK_THAT(words, Contains("modeling_qwen3_5.py"));
  for (const int64_t length : {1, 12, 64}) {
    CHECK(program->forward(Ids(2, length), Ids(2, length))["logits"].size(1) == length);
  }
}

// The archive of a case with one more guard on the length.
void WriteGuarded(const ScratchFolder& scratch, const std::string& name, const std::string& file, JsonValue condition) {
  const ProgramArchive archive = ProgramArchive::Open(kFixtures / name / "program.pt2").ValueOrThrow();
  std::vector<ZipEntry> entries;
  for (const std::string& entry : archive.entries()) {
    std::string bytes = archive.Read(entry).ValueOrThrow();
    if (entry == "extra/moonshard.json") {
      JsonValue record = ParseJson(bytes, entry).ValueOrThrow();
      record.AsObject().at("guards").AsArray().push_back(JsonValue::Object{
          {"condition", std::move(condition)}, {"text", "of the test"}, {"place", ""}, {"origin", "model"}});
      bytes = WriteJson(record, 0);
    }
    entries.push_back({"program/" + entry, std::move(bytes)});
  }
  scratch.Write(file, StoredZip(entries));
}

// The symbol of a program's length.
std::string LengthOf(const std::string& name) {
  const ExportedProgram program = ReadProgramPath(kFixtures / name / "program.pt2").ValueOrThrow();
  return program.inputs.front().shape[1].text;
}

JsonValue Condition(const std::string& op, const std::string& symbol, int64_t number) {
  return JsonValue::Array{JsonValue(op), JsonValue(symbol), JsonValue(number)};
}

// Whether the module of the program can leave its bias to a boundary, which adds it along the last dim of the result.
bool HoldsBack(Program& program, const std::string& path) {
  const LiveTree live = ReadLiveTree(program).ValueOrThrow();
  for (size_t m = 0; m < live.modules.size(); ++m) {
    if (live.tree->modules()[m].path != path) continue;
    const bool held = live.hooks[m]->HoldBack("bias");
    live.hooks[m]->ReleaseBack("bias");
    return held;
  }
  FAIL("no module " << path);
  return false;
}

TEST_CASE("only a bias that is added as it is along the last dim can be left out of a forward") {
  const std::string path = "transformer.h.0.mlp.c_proj";
  CHECK(HoldsBack(*Program::Open(kFixtures / "gpt2/program.pt2"), path));
  const auto convolution = Program::Open(SourcePath("tests/parity/fixed_sizes/convolution.pt2"));
  CHECK(HoldsBack(*convolution, "q"));
  CHECK_FALSE(HoldsBack(*convolution, "conv"));  // along the channels
  // Of a module that is never called nothing is added, whatever reads its bias.
  for (const char* name : {"never_called", "bias_of_uncalled"}) {
    INFO(name);
    const auto uncalled = Program::Open(SourcePath("tests/parity/fixed_sizes/" + std::string(name) + ".pt2"));
    CHECK(HoldsBack(*uncalled, "own"));
  }

  const ScratchFolder scratch;
  const ProgramArchive archive = ProgramArchive::Open(kFixtures / "gpt2/program.pt2").ValueOrThrow();
  for (const std::string beta : {"1.0", "0.5"}) {
    std::vector<ZipEntry> entries;
    for (const std::string& entry : archive.entries()) {
      std::string bytes = archive.Read(entry).ValueOrThrow();
      if (entry == "models/model.json") {
        JsonValue model = ParseJson(bytes, entry).ValueOrThrow();
        JsonValue::Object& graph = model.AsObject().at("graph_module").AsObject().at("graph").AsObject();
        for (JsonValue& node : graph.at("nodes").AsArray()) {
          const bool adds = node.Find("target")->AsString() == "torch.ops.aten.addmm.default";
          if (!adds || WriteJson(node, 0).find("p_transformer_h_0_mlp_c_proj_bias") == std::string::npos) continue;
          node.AsObject().at("inputs").AsArray().push_back(
              ParseJson(R"({"name": "beta", "kind": 2, "arg": {"as_float": )" + beta + "}}", entry).ValueOrThrow());
        }
        bytes = WriteJson(model, 0);
      }
      entries.push_back({"program/" + entry, std::move(bytes)});
    }
    scratch.Write("beta.pt2", StoredZip(entries));
    CHECK(HoldsBack(*Program::Open(scratch / "beta.pt2"), path) == (beta == "1.0"));
  }
}

TEST_CASE("a tensor of a dtype that LibTorch's operators do not take is an error") {
  const ProgramArchive archive = ProgramArchive::Open((kFixtures / "llama" / "program.pt2").string()).ValueOrThrow();
  auto program = std::make_shared<ExportedProgram>(ReadProgram(archive).ValueOrThrow());
  program->tensors.front().dtype = 200;
  const Result<std::shared_ptr<Program>> made = Program::FromArchive(archive, program);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(ToText(made.diagnostics()), Contains("MS0412") && Contains("has a dtype that is not supported (200)"));
}

TEST_CASE("a parameter of float8 fnuz is read, and an operator that does not take it is an error with its module") {
  const std::string path = "model.layers.0.mlp.up_proj";
  for (const auto& [number, type] : {std::pair(31, at::kFloat8_e4m3fnuz), std::pair(32, at::kFloat8_e5m2fnuz)}) {
    const ProgramArchive archive = ProgramArchive::Open((kFixtures / "llama" / "program.pt2").string()).ValueOrThrow();
    auto exported = std::make_shared<ExportedProgram>(ReadProgram(archive).ValueOrThrow());
    for (ProgramTensor& tensor : exported->tensors)
      tensor.dtype = tensor.name == path + ".weight" ? number : tensor.dtype;
    const std::shared_ptr<Program> program = Program::FromArchive(archive, exported).ValueOrThrow();
    CHECK(program->named_parameters()[path + ".weight"].scalar_type() == type);
    for (at::Tensor& parameter : program->parameters()) {
      nn::Materialize(parameter,
                      at::ones(parameter.sizes(), parameter.options().device(at::kCPU).requires_grad(false)));
    }
    CHECK_THROWS_WITH(program->forward(Ids(1, 4), Ids(1, 4)),
                      Contains("(aten::linear) of '" + path + "'") && Contains(c10::toString(type)));
  }
}

TEST_CASE("arguments and results of another kind than the operator's are errors") {
  using Argument = ProgramArgument;
  const ExportedProgram program = ReadProgramPath(kFixtures / "deepseek_v3" / "program.pt2").ValueOrThrow();
  const auto errors = [&](const std::string& target, const std::function<void(ProgramNode&)>& edit) {
    ExportedProgram edited = program;
    const auto node = std::ranges::find(edited.graph.nodes, target, &ProgramNode::target);
    REQUIRE(node != edited.graph.nodes.end());
    edit(*node);
    const Result<program::CompiledProgram> compiled = program::CompileProgram(edited);
    return compiled.ok() ? "no error" : ToText(compiled.diagnostics());
  };
  const auto dtype_as_integer = [](ProgramNode& node) {
    for (auto& [name, argument] : node.inputs) {
      if (name == "dtype") argument.kind = Argument::Kind::kInt;
    }
  };
  CHECK_THAT(errors("aten::to", dtype_as_integer), Contains("MS0412") && Contains("'dtype' is not a ScalarType"));
  // The numbers of the schema: 32 is float8_e5m2fnuz, and 33 is none.
  const auto dtype_of = [](int64_t number) {
    return [number](ProgramNode& node) {
      for (auto& [name, argument] : node.inputs) {
        if (name == "dtype") argument.integer = number;
      }
    };
  };
  for (const int64_t number : {9, 11, 31, 32}) CHECK(errors("aten::to", dtype_of(number)) == "no error");
  for (const int64_t number : {0, 27, 33, 200}) {
    CHECK_THAT(errors("aten::to", dtype_of(number)),
               Contains("MS0412") &&
                   Contains("dtype " + std::to_string(number) + " of the schema of torch.export is not supported"));
  }
  const auto enumeration = [](Argument::Kind kind, const char* of, int64_t number) {
    return [=](ProgramNode& node) {
      ProgramArgument argument;
      argument.kind = kind;
      argument.integer = number;
      std::erase_if(node.inputs, [&](const auto& one) { return one.first == of; });
      node.inputs.emplace_back(of, argument);
    };
  };
  CHECK_THAT(errors("aten::arange", enumeration(Argument::Kind::kLayout, "layout", 1)),
             Contains("the layout of a tensor is not strided"));
  CHECK(errors("aten::arange", enumeration(Argument::Kind::kLayout, "layout", 7)) == "no error");
  CHECK_THAT(errors("aten::to", enumeration(Argument::Kind::kMemoryFormat, "memory_format", 9)),
             Contains("an argument is an unknown memory format"));
  CHECK(errors("aten::to", enumeration(Argument::Kind::kMemoryFormat, "memory_format", 2)) == "no error");
  const auto in_list = [](ProgramNode& node) { node.outputs_in_list = true; };
  CHECK_THAT(errors("aten::linear", in_list), Contains("'aten::linear' does not return one list"));
  for (const size_t argument : {1, 2, 3}) {
    const auto as_text = [&](ProgramNode& node) { node.inputs[argument].second.kind = Argument::Kind::kString; };
    CHECK_THAT(errors("wrap_with_autocast", as_text), Contains("argument of 'wrap_with_autocast' has the wrong kind"));
  }
}

TEST_CASE("a directory of archives is one program, whose calls take the archive that holds") {
  const ScratchFolder scratch;
  const std::string length = LengthOf("mixtral");
  WriteGuarded(scratch, "mixtral", "short.pt2", Condition("le", length, 8));
  WriteGuarded(scratch, "mixtral", "long.pt2",
               JsonValue::Array{JsonValue("and"), Condition("ge", length, 20), Condition("le", length, 30)});
  const auto index = [&](const std::string& more) {
    scratch.Write("index.json", R"({"format": 1, "programs": [{"file": "short.pt2", "example": 8, "ranges": [[1, 8]]},
      {"file": "long.pt2", "example": 25, "ranges": [[20, 30]]})" +
                                    more + "]}");
  };
  index("");
  CHECK(IsProgramPath(scratch / ""));
  const auto load = [](Program& program) {
    at::manual_seed(3);
    for (auto& parameter : program.named_parameters()) {
      nn::Materialize(parameter.value(), at::randn(parameter.value().sizes()) * 0.1);
    }
  };
  const std::shared_ptr<Program> program = Program::Open(scratch / "");
  const std::shared_ptr<Program> alone = Program::Open(kFixtures / "mixtral" / "program.pt2");
  load(*program);
  load(*alone);
  CHECK(program->named_parameters().size() == alone->named_parameters().size());
  for (const int64_t tokens : {2, 8, 20, 30, 5, 25}) {
    INFO(tokens);
    const at::Tensor loss = program->forward(Ids(2, tokens), Ids(2, tokens))["loss"];
    const at::Tensor expected = alone->forward(Ids(2, tokens), Ids(2, tokens))["loss"];
    CHECK(loss.equal(expected));
    loss.backward();
    expected.backward();
  }
  // One set of parameters: the gradients of all archives are in it.
  const auto gradients = alone->named_parameters();
  for (const auto& parameter : program->named_parameters()) {
    INFO(parameter.key());
    CHECK(parameter.value().grad().equal(gradients[parameter.key()].grad()));
  }
  const std::string words = WordsOf([&] { program->forward(Ids(2, 12), Ids(2, 12)); });
  CHECK_THAT(words, Contains("MS0515") && Contains("none of the 2 archives is valid for these sizes"));
  CHECK_THAT(words, Contains("input_ids [2, 12]") && Contains("as exported: 1 to 8, 20 to 30"));

  // Directories that are refused.
  const auto refused = [&] { return WordsOf([&] { Program::Open(scratch / ""); }); };
  std::filesystem::copy(kFixtures / "llama" / "program.pt2", scratch / "other.pt2");
  index(R"(, {"file": "other.pt2", "example": 9, "ranges": [[9, 19]]})");
  CHECK_THAT(refused(), Contains("'other.pt2' does not match the first archive of the index: its modules differ"));
  index(R"(, {"file": "../other.pt2", "example": 9, "ranges": [[9, 19]]})");
  CHECK_THAT(refused(), Contains("'../other.pt2' is not the name of a .pt2 file in the directory of the index"));
  index(R"(, {"file": "no.pt2", "example": 9, "ranges": [[9, 19]]})");
  CHECK_THAT(refused(), Contains("no.pt2"));
  scratch.Write("index.json", R"({"format": 2, "programs": []})");
  CHECK_THAT(refused(), Contains("the index has format 2, required: 1"));
  scratch.Write("index.json", R"({"format": 1, "programs": []})");
  CHECK_THAT(refused(), Contains("the index has no programs"));
}

// Counters, tables of indices: the archive has no values of them, and the checkpoint does not have them either.
TEST_CASE("a persistent buffer without values is an error of the first call, of integers too") {
  const std::string path = SourcePath("tests/parity/own_modules/outputs/program.pt2");
  const NamedTensors inputs = ReadTensors(SourcePath("tests/parity/own_modules/outputs/inputs.safetensors"));
  for (const char* dtype : {"float32", "int64", "bool"}) {
    INFO(dtype);
    auto exported = std::make_shared<ExportedProgram>(ReadProgramPath(path).ValueOrThrow());
    const auto scale = std::ranges::find(exported->tensors, "scale", &ProgramTensor::name);
    REQUIRE(scale != exported->tensors.end());
    scale->entry.clear();
    scale->initial.reset();
    scale->dtype = *SerializedDType(dtype);
    const std::shared_ptr<Program> program = Program::FromProgram(exported).ValueOrThrow();
    const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=1").ValueOrThrow());
    auto model = Parallelize(program, Plan(), mesh);
    std::map<std::string, at::Tensor> state;
    for (const LiveParameter& parameter : model.applied().parameters()) {
      if (!parameter.is_buffer) state[parameter.path] = at::ones(parameter.shape);
    }
    CHECK(LoadFullState(model.applied(), state).empty());
    const std::string words = WordsOf([&] { program->forward(inputs); });
    CHECK_THAT(words, Contains("MS0512") && Contains("'scale' was built without values") &&
                          Contains("a checkpoint that contains this buffer"));
    state["scale"] = at::ones({8}, scale->dtype == 7 ? at::kFloat : at::kLong);
    CHECK(LoadFullState(model.applied(), state).empty());
    CHECK(WordsOf([&] { program->forward(inputs); }) == "no error");
  }
}

TEST_CASE("a persistent buffer that the checkpoint lacks gets the value that the archive records, with a note") {
  const std::string folder = SourcePath("tests/parity/own_modules/outputs/");
  const NamedTensors inputs = ReadTensors(folder + "inputs.safetensors");
  auto exported = std::make_shared<ExportedProgram>(ReadProgramPath(folder + "program.pt2").ValueOrThrow());
  const auto scale = std::ranges::find(exported->tensors, "scale", &ProgramTensor::name);
  REQUIRE(scale != exported->tensors.end());
  scale->entry.clear();
  const std::shared_ptr<Program> program = Program::FromProgram(exported).ValueOrThrow();
  const DeviceMesh mesh = DeviceMesh::Recording(MeshShape::Parse("tp=1").ValueOrThrow());
  auto model = Parallelize(program, Plan(), mesh);
  std::map<std::string, at::Tensor> state;
  for (const LiveParameter& parameter : model.applied().parameters()) {
    if (!parameter.is_buffer) state[parameter.path] = at::ones(parameter.shape);
  }
  const auto scale_of_model = [&] {
    for (const LiveParameter& parameter : model.applied().parameters()) {
      if (parameter.path == "scale") return parameter.tensor.clone();
    }
    return at::Tensor();
  };
  const Diagnostics notes = LoadFullState(model.applied(), state, {.buffers = MissingBufferInit(*exported)});
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].severity == Severity::kNote);
  CHECK(notes[0].message == "the state does not have buffers of the model, which get their initial values: scale");
  CHECK(at::equal(scale_of_model(), at::linspace(0.5, 1.5, 8)));
  CHECK(WordsOf([&] { program->forward(inputs); }) == "no error");
  // A value that is there is not replaced, nor one of the archive.
  state["scale"] = at::full({8}, 3.0);
  CHECK(LoadFullState(model.applied(), state, {.buffers = MissingBufferInit(*exported)}).empty());
  CHECK(at::equal(scale_of_model(), state["scale"]));
  state.erase("scale");
  scale->entry = "data/weights/weight_0";
  CHECK(LoadFullState(model.applied(), state, {.buffers = MissingBufferInit(*exported)}).empty());
  CHECK(at::equal(scale_of_model(), at::full({8}, 3.0)));
}

// Every thread brings sizes that the program has not seen, which a call looks up and keeps.
TEST_CASE("calls on several threads compute what calls on one thread compute") {
  const std::string path = SourcePath("tests/parity/fixed_sizes/none.pt2");
  constexpr int64_t kRows = 256;
  constexpr size_t kThreads = 4;
  std::vector<std::pair<int64_t, int64_t>> sizes;  // of a batch and of its sequences
  for (int64_t batch = 1; batch <= kRows; ++batch) {
    for (int64_t length = 1; batch * length <= kRows; ++length) sizes.emplace_back(batch, length);
  }
  const c10::InferenceMode inference;
  const at::Tensor x = at::linspace(-1, 1, kRows * 8).view({kRows, 8});
  const at::Tensor expected = Program::Open(path)->forward(x.unsqueeze(0))["output"].squeeze(0);
  for (int turn = 0; turn < 4; ++turn) {
    const std::shared_ptr<Program> program = Program::Open(path);
    std::atomic<size_t> right = 0;
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const c10::InferenceMode here;
        for (size_t i = 0; i < sizes.size(); ++i) {
          const auto [batch, length] = sizes[(i + thread * sizes.size() / kThreads) % sizes.size()];
          const int64_t rows = batch * length;
          const at::Tensor made = program->forward(x.narrow(0, 0, rows).view({batch, length, 8}))["output"];
          if (RelativeError(made.view({rows, 8}), expected.narrow(0, 0, rows)) <= 1e-6) ++right;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(right == kThreads * sizes.size());
  }
}

TEST_CASE("a program says which inputs it takes") {
  const std::shared_ptr<Program> program = Loaded("llama");
  CHECK_THAT(WordsOf([&] { program->forward(Ids(2, 5)); }), Contains("2: input_ids, labels"));
  CHECK_THAT(WordsOf([&] {
               program->forward(std::map<std::string, at::Tensor>{{"input_ids", Ids(2, 5)}});
             }),
             Contains("needs the input 'labels'"));
  CHECK_THAT(WordsOf([&] {
               program->forward(std::map<std::string, at::Tensor>{
                   {"input_ids", Ids(2, 5)}, {"labels", Ids(2, 5)}, {"input_idz", Ids(2, 5)}});
             }),
             Contains("did you mean 'input_ids'?"));
  CHECK_THAT(WordsOf([&] { program->forward(Ids(2, 5).flatten(), Ids(2, 5)); }),
             Contains("the input 'input_ids' has the shape [10]"));
  CHECK_THAT(WordsOf([&] { program->forward(Ids(2, 5), Ids(2, 5))["logit"]; }), Contains("did you mean 'logits'?"));
}

TEST_CASE("a live program has the tree of its archive") {
  for (const char* name : {"llama", "deepseek_v3", "t5", "qwen2_5_vl", "nemotron_h"}) {
    const ProgramArchive archive = ProgramArchive::Open(kFixtures / name / "program.pt2").ValueOrThrow();
    const auto exported = std::make_shared<const ExportedProgram>(ReadProgram(archive).ValueOrThrow());
    const auto program = Program::FromArchive(archive, exported).ValueOrThrow();
    CHECK(ReadLiveTree(*program).ValueOrThrow().tree->ToText() == ProgramTree(*exported).ToText());
  }
}

TEST_CASE("equal layers share their bodies, and no call of a module is torn") {
  for (const char* name : {"llama", "mixtral", "deepseek_v3", "falcon_h1", "qwen3_5_moe", "t5", "gpt_oss"}) {
    const ProgramArchive archive = ProgramArchive::Open(kFixtures / name / "program.pt2").ValueOrThrow();
    const ExportedProgram exported = ReadProgram(archive).ValueOrThrow();
    const program::CallTree tree = program::FindCalls(exported);
    CHECK(tree.torn.empty());
    size_t nodes = 0;
    for (const program::CallNode& call : tree.calls) {
      for (const program::CallNode::Item& item : call.items) nodes += item.is_call ? 0 : 1;
    }
    CHECK(nodes == exported.graph.nodes.size());
  }
  const ProgramArchive archive = ProgramArchive::Open(kFixtures / "llama" / "program.pt2").ValueOrThrow();
  const program::CompiledProgram llama = program::CompileProgram(ReadProgram(archive).ValueOrThrow()).ValueOrThrow();
  CHECK(llama.bodies.at({"model.layers.0", 0}) == llama.bodies.at({"model.layers.1", 0}));
  CHECK(llama.bodies.at({"model.layers.0.self_attn.q_proj", 0}) != llama.bodies.at({"model.layers.0.mlp.act_fn", 0}));
}

TEST_CASE("arithmetic on sizes is Python's") {
  using program::Arithmetic;
  using program::ArithmeticCode;
  const auto of = [](const char* name, int64_t a, int64_t b) { return Arithmetic(ArithmeticCode(name), a, b); };
  CHECK(of("mul", 6, 7).toInt() == 42);
  CHECK(of("add", -6, 7).toInt() == 1);
  CHECK(of("sub", 6, 7).toInt() == -1);
  CHECK(of("floordiv", -7, 2).toInt() == -4);
  CHECK(of("mod", -7, 3).toInt() == 2);
  CHECK(of("mod", 7, -3).toInt() == -2);
  CHECK(of("mod", std::numeric_limits<int64_t>::min(), 7).toInt() == 6);
  CHECK(of("mod", std::numeric_limits<int64_t>::min(), -1).toInt() == 0);
  CHECK(of("pow", 3, 4).toInt() == 81);
  CHECK(of("truediv", 7, 2).toDouble() == 3.5);
  CHECK(of("sym_max", 3, 9).toInt() == 9);
  CHECK(of("ge", 3, 3).toBool());
  CHECK_THROWS_AS(of("floordiv", 1, 0), c10::Error);
  CHECK_THROWS_AS(of("mul", int64_t{1} << 40, int64_t{1} << 40), c10::Error);
  // Neither without end nor beyond what an integer holds.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  CHECK(of("pow", 1, kMost).toInt() == 1);
  CHECK(of("pow", -1, kMost).toInt() == -1);
  CHECK(of("pow", 0, 0).toInt() == 1);
  CHECK_THROWS_AS(of("pow", 2, kMost), c10::Error);
  CHECK(of("pow", 2, -1).toDouble() == 0.5);
  CHECK_THROWS_AS(of("floordiv", std::numeric_limits<int64_t>::min(), -1), c10::Error);
  CHECK_THROWS_AS(Arithmetic(ArithmeticCode("add"), 1.5, c10::IValue()), c10::Error);
  CHECK_THROWS_AS(of("neg", std::numeric_limits<int64_t>::min(), 0), c10::Error);
  CHECK_THROWS_AS(Arithmetic(ArithmeticCode("floor"), 1e300, c10::IValue()), c10::Error);
  CHECK(ArithmeticCode("matmul") == -1);
}

}  // namespace
}  // namespace moonshard::test

// `eval` and `compare` as a user starts them: the recorded numbers, the statistics, options of the plan, micro-batches.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "engine/core/base/json.h"
#include "engine/io/safetensors/header.h"
#include "tests/dsl/commands/train/token_bytes.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/programs.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// eval of inputs_1 with gradients, on two ranks, into `out`.
Outcome Eval(const std::string& out, const Words& more, const std::string& input = kModel + "/inputs_1.safetensors") {
  Words words = {"eval", kModel, "--mesh", "tp=2", "--input", input, "--output", out, "--grads"};
  words.insert(words.end(), more.begin(), more.end());
  return RunExecutable(ExecutablePath(), words);
}

void ExpectRecorded(const std::string& out, const std::string& expected = "expected_1") {
  const Outcome compared = RunExecutable(ExecutablePath(), {"compare", out, kModel + "/" + expected + ".safetensors"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
  CHECK_THAT(compared.out, Contains("23 tensors, largest difference") && !Contains("TOO LARGE"));
}

int64_t CountOf(const JsonValue& stats, const std::string& direction, const std::string& kind) {
  const JsonValue* entry = stats.Find(direction)->Find(kind);
  return entry == nullptr ? 0 : entry->Find("count")->AsInt();
}

TEST_CASE("two ranks compute what was recorded, with two sums per layer each way") {
  const ScratchFolder folder;
  const Outcome done = Eval(folder / "out.safetensors", {"--stats", folder / "stats.json"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  CHECK(done.out.empty());
  CHECK(done.err.empty());
  ExpectRecorded(folder / "out.safetensors");
  const JsonValue stats = ReadJsonFile(folder / "stats.json").ValueOrThrow();
  // Two layers of two, and the embedding's forward; the head's input backward.
  CHECK(CountOf(stats, "forward", "all_reduce") == 5);
  CHECK(CountOf(stats, "backward", "all_reduce") == 5);
  CHECK(CountOf(stats, "forward", "all_gather") == 1);
  CHECK(stats.Find("forward")->AsObject().size() == 2);
  CHECK(stats.Find("backward")->AsObject().size() == 1);
  CHECK(stats.Find("forward")->Find("all_reduce")->Find("bytes")->AsInt() > 0);
  CHECK(stats.Find("loss")->AsString() == "next tokens");
  REQUIRE(stats.Find("per_rank")->AsArray().size() == 2);
  for (const JsonValue& rank : stats.Find("per_rank")->AsArray()) {
    CHECK(rank.Find("parameter_bytes")->AsInt() == 140544);
    CHECK(rank.Find("peak_rss_bytes")->AsInt() > 1 << 20);
  }
  for (const char* phase : {"load", "forward", "backward"}) CHECK(stats.Find("seconds")->Find(phase) != nullptr);
}

// Each rank of ep has all rows: 4 of 13 tokens, each for two of four experts.
TEST_CASE("the statistics of a plan that sends tokens have the load of every expert") {
  const ScratchFolder folder;
  const std::string model = kParity + "mixtral";
  const auto stats_of = [&](const std::string& mesh, const Words& more) {
    Words words = {"eval",
                   model,
                   "--mesh",
                   mesh,
                   "--input",
                   model + "/inputs_1.safetensors",
                   "--output",
                   folder / "out.safetensors",
                   "--grads",
                   "--stats",
                   folder / "stats.json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunExecutable(ExecutablePath(), words);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return ReadJsonFile(folder / "stats.json").ValueOrThrow();
  };
  std::vector<int64_t> of_two;
  for (const std::string mesh : {"ep=2", "ep=2,tp=2", "ep=4"}) {
    INFO(mesh);
    const JsonValue stats = stats_of(mesh, {"--option", "exchange=true"});
    const Outcome compared =
        RunExecutable(ExecutablePath(), {"compare", folder / "out.safetensors", model + "/expected_1.safetensors"});
    INFO(compared.ToText());
    CHECK(compared.code == 0);
    CHECK(CountOf(stats, "forward", "all_to_all") == 2 * 3);
    CHECK(CountOf(stats, "backward", "all_to_all") == 2 * 2);
    REQUIRE(stats.Find("experts") != nullptr);
    const JsonValue::Array& experts = stats.Find("experts")->AsArray();
    REQUIRE(experts.size() == 2);
    const int64_t ranks = mesh == "ep=4" ? 4 : 2;
    std::vector<int64_t> received;
    for (size_t i = 0; i < experts.size(); ++i) {
      CHECK(experts[i].Find("path")->AsString() == "model.layers." + std::to_string(i) + ".block_sparse_moe.experts");
      CHECK(experts[i].Find("dropped")->AsInt() == 0);
      REQUIRE(experts[i].Find("received")->AsArray().size() == 4);
      int64_t sum = 0;
      for (const JsonValue& rows : experts[i].Find("received")->AsArray()) {
        received.push_back(rows.AsInt() / ranks);
        sum += rows.AsInt();
      }
      CHECK(sum == ranks * 4 * 13 * 2);
    }
    if (of_two.empty()) of_two = received;
    CHECK(received == of_two);
  }
  CHECK(stats_of("tp=2", {"--option", "exchange=true"}).Find("experts") == nullptr);
  const std::string plan = SourcePath("tests/dsl/commands/run/planted/exchange_drops.lua");
  const JsonValue drops = stats_of("ep=2", {"--option", "exchange=true", "--plan", plan});
  CHECK(drops.Find("experts")->AsArray()[0].Find("dropped")->AsInt() == 0);
  CHECK(drops.Find("experts")->AsArray()[1].Find("dropped")->AsInt() > 0);
}

// Each rank of ep and dp has all rows: the sums over ranks are a multiple, and the loss is that of one rank.
TEST_CASE("eval adds the losses of routers that the config asks for") {
  const ScratchFolder folder;
  const std::string model = kParity + "routers/mixtral";
  struct Row {
    std::string mesh;
    Words more;
    int64_t sums;
  };
  const Row row = GENERATE(values<Row>({
      {"tp=2", {}, 5},
      {"tp=4", {"--option", "sequence_parallel=true"}, 0},
      {"dp=2", {}, 1},
      {"ep=2,tp=2", {"--option", "exchange=true"}, 6},
      {"cp=4", {"--option", "context=ulysses"}, 1},
  }));
  INFO(row.mesh);
  Words words = {"eval", model, "--mesh", row.mesh, "--input", model + "/inputs_1.safetensors"};
  words.insert(words.end(), {"--output", folder / "out.safetensors", "--stats", folder / "stats.json", "--grads"});
  words.insert(words.end(), row.more.begin(), row.more.end());
  const Outcome done = RunExecutable(ExecutablePath(), words);
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const Outcome compared =
      RunExecutable(ExecutablePath(), {"compare", folder / "out.safetensors", model + "/expected_1.safetensors"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
  CHECK_THAT(compared.out, Contains("43 tensors, largest difference") && !Contains("TOO LARGE"));
  CHECK(CountOf(ReadJsonFile(folder / "stats.json").ValueOrThrow(), "forward", "all_reduce") == row.sums);
}

// The losses of routers of a micro-batch are those of its own rows.
TEST_CASE("micro-batches of equal rows have the losses of routers of the batch") {
  const ScratchFolder folder;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 40; ++i) ids.push_back(i % 10 * 7 % 24);
  const std::string input =
      folder.Write("input.safetensors", TensorFile({{"input_ids", "I64", "[4,10]", RawTokens<int64_t>(ids)}}));
  for (const char* parts : {"1", "2"}) {
    const Outcome done = RunExecutable(
        ExecutablePath(), {"eval", kParity + "routers/mixtral", "--mesh", "tp=2", "--input", input, "--output",
                           folder / (std::string(parts) + ".safetensors"), "--grads", "--micro-batches", parts});
    INFO(done.ToText());
    REQUIRE(done.code == 0);
  }
  const Outcome compared =
      RunExecutable(ExecutablePath(), {"compare", folder / "2.safetensors", folder / "1.safetensors"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
  CHECK_THAT(compared.out, Contains("43 tensors, largest difference") && !Contains("TOO LARGE"));
}

// Without a section nothing divides the gradients of experts by the ranks whose rows they get.
TEST_CASE("gradients of experts on ep are not written where no section reduces the others") {
  const ScratchFolder folder;
  const std::string model = SourcePath("tests/parity/mixtral");
  const std::string plan = SourcePath("tests/dsl/commands/run/planted/exchange_alone.lua");
  std::vector<std::string> words = {"eval",     model,
                                    "--mesh",   "ep=2",
                                    "--plan",   plan,
                                    "--input",  model + "/inputs_1.safetensors",
                                    "--output", folder / "out.safetensors"};
  CHECK(RunExecutable(ExecutablePath(), words).code == 0);
  words.emplace_back("--grads");
  const Outcome refused = RunExecutable(ExecutablePath(), words);
  INFO(refused.ToText());
  CHECK(refused.code != 0);
  CHECK(refused.err.find("sends tokens to experts and reduces no gradients over ep") != std::string::npos);
}

TEST_CASE("sequence parallelism: two gathers and two scatters a layer each way, the same numbers") {
  const ScratchFolder folder;
  const Outcome done = Eval(folder / "out.safetensors", {"--option", "sequence_parallel=true", "--stats", "-"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  ExpectRecorded(folder / "out.safetensors");
  const JsonValue stats = ParseJson(done.out, "stdout").ValueOrThrow();
  // Forward: the embedding scatters, the head gathers its input and its logits. Backward: their opposites, but the
  // logits' gradient is cut without talk; and one flat sum for the norms.
  CHECK(CountOf(stats, "forward", "reduce_scatter") == 5);
  CHECK(CountOf(stats, "forward", "all_gather") == 6);
  CHECK(CountOf(stats, "forward", "all_reduce") == 0);
  CHECK(CountOf(stats, "backward", "reduce_scatter") == 5);
  CHECK(CountOf(stats, "backward", "all_gather") == 5);
  CHECK(CountOf(stats, "backward", "all_reduce") == 1);
}

TEST_CASE("logits left in shards, and micro-batches, change no number") {
  const ScratchFolder folder;
  const Outcome loss_parallel = Eval(folder / "pieces.safetensors", {"--option", "loss_parallel=true"});
  INFO(loss_parallel.ToText());
  REQUIRE(loss_parallel.code == 0);
  ExpectRecorded(folder / "pieces.safetensors");
  const Outcome micro = Eval(folder / "micro.safetensors", {"--micro-batches", "2", "--stats", "-"});
  INFO(micro.ToText());
  REQUIRE(micro.code == 0);
  ExpectRecorded(folder / "micro.safetensors");
  CHECK(CountOf(ParseJson(micro.out, "stdout").ValueOrThrow(), "backward", "all_reduce") == 10);
  const Outcome both =
      Eval(folder / "both.safetensors", {"--micro-batches", "2", "--option", "sequence_parallel=true"});
  INFO(both.ToText());
  REQUIRE(both.code == 0);
  ExpectRecorded(folder / "both.safetensors");
}

TEST_CASE("rows of several documents have the recorded numbers") {
  const ScratchFolder folder;
  const std::string input = kModel + "/inputs_packed.safetensors";
  for (const Words& more :
       {Words{"tp=2"}, Words{"tp=2", "--micro-batches", "2", "--option", "loss_parallel=true"},
        Words{"cp=2", "--option", "context=ring"}, Words{"cp=2", "--option", "context=ring", "--option", "inputs=own"},
        Words{"cp=4", "--option", "context=ulysses", "--micro-batches", "2"}}) {
    Words words = {"eval", kModel, "--input", input, "--output", folder / "out.safetensors", "--grads", "--mesh"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome done = RunExecutable(ExecutablePath(), words);
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    ExpectRecorded(folder / "out.safetensors", "expected_packed");
  }
}

// In the length of a rank's own tokens it would be taken for that of each rank.
TEST_CASE("a mask in the length of a rank's own tokens is refused, as are positions") {
  const ScratchFolder folder;
  for (const std::string name : {"attention_mask", "position_ids"}) {
    const std::string input =
        folder.Write(name + ".json", R"({"input_ids": [[1, 2, 3, 4, 5, 6, 7, 8]], ")" + name + R"(": [[1, 1, 1, 1]]})");
    const Outcome done =
        RunExecutable(ExecutablePath(), {"eval", kModel, "--input", input, "--output", folder / "out.safetensors",
                                         "--mesh", "cp=2", "--option", "context=ring", "--option", "inputs=own"});
    INFO(done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("'" + name + "' is [1, 4], and 'input_ids' is [1, 8]"));
  }
}

TEST_CASE("padded rows have the recorded numbers on a ring with a loss of each rank's own tokens") {
  const ScratchFolder folder;
  const std::string model = kParity + "mistral_window8";
  const Outcome done =
      RunExecutable(ExecutablePath(), {"eval", model, "--input", model + "/inputs_padded.safetensors", "--output",
                                       folder / "out.safetensors", "--grads", "--mesh", "cp=4", "--option",
                                       "context=ring", "--option", "loss_parallel=true"});
  INFO(done.ToText());
  REQUIRE(done.code == 0);
  const Outcome compared =
      RunExecutable(ExecutablePath(), {"compare", folder / "out.safetensors", model + "/expected_padded.safetensors"});
  INFO(compared.ToText());
  // The logits of padding are not defined; the loss and the gradients have none of them.
  const size_t large = compared.out.find("TOO LARGE");
  CHECK(compared.out.find("TOO LARGE", large + 1) == std::string::npos);
  CHECK_THAT(compared.out, Contains("23 tensors, largest difference") && Contains("(logits), tolerance"));
}

TEST_CASE("a program refuses documents, which it was not exported with") {
  const ScratchFolder folder;
  const std::string input =
      folder.Write("in.json", R"({"input_ids": [[1, 2, 3], [4, 5, 6]], "document_ids": [[0, 0, 1], [0, 1, 1]]})");
  const Outcome done = RunExecutable(ExecutablePath(), {"eval", kParity + "programs/llama/program.pt2", "--input",
                                                        input, "--output", folder / "out.safetensors"});
  INFO(done.ToText());
  CHECK(done.code == 1);
  CHECK_THAT(done.err, Contains("MS0508") && Contains("the program cannot take 'document_ids'") &&
                           Contains("export the model with them in --inputs"));
}

// 3 labels count: those of 2, 4 and 5, each behind a token of its document.
TEST_CASE("the loss of documents has no label over a boundary, and positions count from the first token of each") {
  const ScratchFolder folder;
  const std::string ids = R"({"input_ids": [[1, 2, 3, 4, 5]], )";
  const std::string documents = folder.Write("documents.json", ids + R"("document_ids": [[4, 4, 9, 9, 9]]})");
  const std::string same =
      folder.Write("same.json", ids + R"("labels": [[1, 2, -100, 4, 5]], "position_ids": [[0, 1, 0, 1, 2]]})");
  REQUIRE(Eval(folder / "documents.safetensors", {}, documents).code == 0);
  REQUIRE(Eval(folder / "same.safetensors", {}, same).code == 0);
  const Outcome compared = RunExecutable(
      ExecutablePath(), {"compare", folder / "documents.safetensors", folder / "same.safetensors", "--tolerance", "0"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
}

TEST_CASE("a part of the batch whose labels do not count adds nothing") {
  const ScratchFolder folder;
  const std::string input = folder.Write(
      "in.json",
      R"({"input_ids": [[1, 2, 3, 4], [5, 6, 7, 8]], "labels": [[-100, -100, -100, -100], [5, -100, 7, 8]]})");
  REQUIRE(Eval(folder / "whole.safetensors", {}, input).code == 0);
  REQUIRE(Eval(folder / "parts.safetensors", {"--micro-batches", "2"}, input).code == 0);
  const Outcome compared =
      RunExecutable(ExecutablePath(), {"compare", folder / "parts.safetensors", folder / "whole.safetensors"});
  INFO(compared.ToText());
  CHECK(compared.code == 0);
}

TEST_CASE("outputs in float64 keep their digits, those of a run in bfloat16 are float32") {
  const ScratchFolder folder;
  const auto eval = [&](const std::string& mesh, const std::string& dtype) {
    std::string out = folder / (mesh + dtype + ".safetensors");
    const Outcome done =
        RunExecutable(ExecutablePath(), {"eval", kModel, "--mesh", mesh, "--input", kModel + "/inputs_1.safetensors",
                                         "--output", out, "--grads", "--dtype", dtype});
    INFO(done.ToText());
    REQUIRE(done.code == 0);
    return out;
  };
  const std::string whole = eval("tp=1", "float64");
  const Outcome same =
      RunExecutable(ExecutablePath(), {"compare", eval("tp=2", "float64"), whole, "--tolerance", "1e-12"});
  INFO(same.ToText());
  CHECK(same.code == 0);
  const auto dtype_of = [](const std::string& file, std::string_view tensor) {
    const Header header = ReadHeader(file).ValueOrThrow();
    const auto found = std::ranges::find(header.tensors, tensor, &HeaderTensor::name);
    REQUIRE(found != header.tensors.end());
    return found->dtype;
  };
  for (const char* tensor : {"logits", "loss", "grad.model.norm.weight"}) CHECK(dtype_of(whole, tensor) == DType::kF64);
  CHECK(dtype_of(eval("tp=2", "bfloat16"), "logits") == DType::kF32);
}

TEST_CASE("compare notices a difference, a missing tensor and another shape") {
  const std::string one = kModel + "/expected_1.safetensors";
  const Outcome differs = RunExecutable(ExecutablePath(), {"compare", kModel + "/expected_2.safetensors", one});
  INFO(differs.ToText());
  CHECK(differs.code == 1);
  CHECK_THAT(differs.out, Contains("TOO LARGE"));
  CHECK_THAT(differs.err, Contains("MS0407") && Contains("'logits' has another shape") && Contains("at most 0.000200"));
  const Outcome missing = RunExecutable(ExecutablePath(), {"compare", kModel + "/inputs_1.safetensors", one});
  CHECK(missing.code == 1);
  CHECK_THAT(missing.err, Contains("MS0406") && Contains("'loss' is not in "));
  const Outcome nowhere = RunExecutable(ExecutablePath(), {"compare", "/nowhere/a.safetensors", one});
  CHECK(nowhere.code == 2);
  CHECK_THAT(nowhere.err, Contains("MS0401") && Contains("/nowhere/a.safetensors"));
}

TEST_CASE("inputs that the model cannot take: said once, no output left") {
  struct Row {
    std::string name;
    std::string input;  // "": the recorded ones
    Words more;
    int code;
    Words said;
  };
  const ScratchFolder folder;
  const std::vector<Row> rows = {
      {"missing", "/nowhere/in.safetensors", {}, 2, {"MS0401", "/nowhere/in.safetensors"}},
      {"no_ids", kModel + "/expected_1.safetensors", {}, 1, {"MS0508", "no 'input_ids'", "expected_1.safetensors"}},
      {"fractions", folder.Write("fractions.json", R"({"input_ids": [[1, 2.5]]})"), {}, 1, {"MS0508", "integers"}},
      {"flat", folder.Write("flat.json", R"({"input_ids": [1, 2]})"), {}, 1, {"MS0508", "two-dimensional", "[B, T]"}},
      {"ragged", folder.Write("ragged.json", R"({"input_ids": [[1, 2], [3]]})"), {}, 1, {"MS0508", "rectangular"}},
      {"broken", folder.Write("broken.json", "{"), {}, 2, {"MS0405", "broken.json"}},
      {"too_large",
       folder.Write("too_large.json", R"({"input_ids": [[1, 64]]})"),
       {},
       1,
       {"MS0508", "outside the vocabulary", "0 to 63"}},
      {"negative", folder.Write("negative.json", R"({"input_ids": [[-1, 2]]})"), {}, 1, {"MS0508", "0 to 63"}},
      {"label",
       folder.Write("label.json", R"({"input_ids": [[1, 2], [3, 4]], "labels": [[1, -100], [3, -7]]})"),
       {},
       1,
       {"MS0508", "'labels' has ids outside the vocabulary", "label.json", "[1, 1] is -7\n", "0 to 63, or -100"}},
      {"labels",
       folder.Write("labels.json", R"({"input_ids": [[1, 2, 3]], "labels": [[1, 64, -1]]})"),
       {},
       1,
       {"MS0508", "[0, 1] is 64, the first of 2"}},
      {"documents",
       folder.Write("documents.json", R"({"input_ids": [[1, 2, 3]], "document_ids": [[0, 0]]})"),
       {},
       1,
       {"MS0508", "'document_ids' is [1, 2], and 'input_ids' is [1, 3]", "[B or 1, T]"}},
      {"kind of documents",
       folder.Write("kind.json", R"({"input_ids": [[1, 2, 3]], "document_ids": [0, 0, 0]})"),
       {},
       1,
       {"MS0508", "'document_ids' is not a two-dimensional tensor of integers", "int64 [B or 1, T]"}},
      {"documents of bool",
       folder.Write("bool.safetensors",
                    TensorFile({{"input_ids", "I64", "[1, 3]", RawTokens<int64_t>({1, 2, 3})},
                                {"document_ids", "BOOL", "[1, 3]", RawTokens<uint8_t>({0, 0, 1})}})),
       {},
       1,
       {"MS0508", "'document_ids' is not a two-dimensional tensor of integers"}},
      {"none", folder.Write("none.json", R"({"input_ids": [[], []]})"), {}, 1, {"MS0508", "'input_ids' is empty"}},
      {"parts", "", {"--micro-batches", "7"}, 1, {"MS0508", "not divisible by 7 micro-batches"}},
      {"statistics", "", {"--stats", "/nowhere/stats.json"}, 1, {"MS0409", "/nowhere/stats.json"}},
      {"output", "", {"--output=/nowhere/out.safetensors"}, 1, {"MS0409", "/nowhere/out.safetensors"}},
      {"layers", "", {}, 2, {"MS0406", "model.layers.2.input_layernorm.weight"}},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    std::string model = kModel;
    if (row.name == "layers") {
      model = folder.CopyOf(kModel, "layers_model");
      const std::string text = ReadWholeFile(model + "/config.json");
      folder.Write("layers_model/config.json", Replaced(text, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"));
    }
    const std::string out = folder / (row.name + ".safetensors");
    Words words = {"eval", model,     "--mesh",
                   "tp=2", "--input", row.input.empty() ? kModel + "/inputs_1.safetensors" : row.input};
    if (row.name != "output") words.insert(words.end(), {"--output", out});
    words.insert(words.end(), row.more.begin(), row.more.end());
    const Outcome done = RunExecutable(ExecutablePath(), words, {}, 30);
    INFO(done.ToText());
    CHECK_FALSE(done.timed_out);
    CHECK(done.code == row.code);
    CHECK(done.out.empty());
    for (const std::string& text : row.said) CHECK_THAT(done.err, Contains(text));
    const size_t first = done.err.find(row.said[0]);
    if (row.name != "layers")
      CHECK(done.err.find(row.said[0], first + 1) == std::string::npos);  // not once for each rank
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

}  // namespace
}  // namespace moonshard::test

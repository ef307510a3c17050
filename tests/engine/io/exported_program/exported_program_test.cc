// small.pt2, which make_small.py exports, as the reader understands it; and what is said of archives that are broken in
// all ways.
#include "engine/io/exported_program/exported_program.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/io/exported_program/program_archive.h"
#include "tests/engine/io/exported_program/program_text.h"
#include "tests/engine/io/exported_program/stored_zip.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/plan_case.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

const std::string kProgramFolder = SourcePath("tests/engine/io/exported_program/");

constexpr const char* kModelJson = "models/model.json";
constexpr const char* kRecordJson = "extra/moonshard.json";

using Entries = std::map<std::string, std::string>;

const std::string& SmallBytes() {
  static const std::string bytes = ReadWholeFile(kProgramFolder + "small.pt2");
  return bytes;
}

const Entries& SmallEntries() {
  static const Entries entries = [] {
    const ProgramArchive archive = ProgramArchive::FromBytes(SmallBytes(), "small.pt2").ValueOrThrow();
    Entries out;
    for (const std::string& name : archive.entries()) out[name] = archive.Read(name).ValueOrThrow();
    return out;
  }();
  return entries;
}

const JsonValue& SmallJson(const std::string& entry) {
  static std::map<std::string, JsonValue> values;
  const auto [found, fresh] = values.try_emplace(entry);
  if (fresh) found->second = ParseJson(SmallEntries().at(entry), entry).ValueOrThrow();
  return found->second;
}

std::string ZipOf(const Entries& entries) {
  std::vector<ZipEntry> list;
  for (const auto& [name, bytes] : entries) list.push_back({"x/" + name, bytes});
  return StoredZip(list);
}

Result<ExportedProgram> ReadBytes(const std::string& bytes) {
  const Result<ProgramArchive> archive = ProgramArchive::FromBytes(bytes, "x.pt2");
  if (!archive.ok()) return archive.diagnostics();
  return ReadProgram(archive.value());
}

Result<ExportedProgram> ReadEntries(const Entries& entries) { return ReadBytes(ZipOf(entries)); }

// What is refused is refused in one way: an error of this finding that names the file. "" where it is accepted.
std::string Refusal(const Result<ExportedProgram>& program) {
  if (program.ok()) {
    CHECK_FALSE(ProgramText(program.value()).empty());
    return "";
  }
  std::string out;
  for (const Diagnostic& d : program.diagnostics()) {
    CHECK(d.finding == Finding::kBadProgram);
    CHECK(d.path.find("x.pt2") == 0);
    CHECK_FALSE(d.message.empty());
    out += (out.empty() ? "" : "\n  ") + d.path + ": " + d.message;
  }
  return out;
}

// A value inside another by keys and indices with slashes between: "graph_module/graph/nodes/-1". Asked for the key
// that is to be made, it makes it; "+" is a new element of an array.
JsonValue& At(JsonValue& root, const std::string& path) {
  JsonValue* at = &root;
  for (const std::string& key : Split(path, '/')) {
    if (key.empty()) continue;
    if (at->is_array() && key == "+") {
      at = &at->AsArray().emplace_back();
    } else if (at->is_array()) {
      const int index = std::stoi(key);
      at = &at->AsArray().at(index < 0 ? at->AsArray().size() - static_cast<size_t>(-index)
                                       : static_cast<size_t>(index));
    } else {
      at = &at->AsObject()[key];
    }
  }
  return *at;
}

// NODES is short for the way to the nodes.
std::string LongPath(const std::string& path) {
  return path.starts_with("NODES") ? Replaced(path, "NODES", "graph_module/graph/nodes") : path;
}

// A cond at the end of the nodes: `chosen` is relu of `add_2`, or its gelu.
void AddCond(JsonValue& root) {
  const std::string meta = WriteJson(At(root, "graph_module/graph/tensor_values/add_2"), 0);
  const auto graph = [&](const std::string& name, const std::string& op) {
    return R"({"name": "", "arg": {"as_graph": {"name": ")" + name +
           R"(", "graph": {"inputs": [{"as_tensor": {"name": "x"}}], "nodes": [{"name": "y", "target": "torch.ops.aten.)" +
           op + R"(.default", "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "x"}}}], "outputs": )" +
           R"([{"as_tensor": {"name": "y"}}], "metadata": {}}], "outputs": [{"as_tensor": {"name": "y"}}], )" +
           R"("tensor_values": {"x": )" + meta + R"(, "y": )" + meta + "}}}}}";
  };
  At(root, "graph_module/graph/tensor_values/chosen") = ParseJson(meta, "meta").ValueOrThrow();
  At(root, "graph_module/graph/nodes/+") =
      ParseJson(R"({"name": "cond", "target": "torch.ops.higher_order.cond", "metadata": {}, "inputs": )"
                R"([{"name": "", "arg": {"as_sym_bool": {"as_bool": true}}}, )" +
                    graph("true_graph_0", "relu") + ", " + graph("false_graph_0", "gelu") +
                    R"(, {"name": "", "arg": {"as_tensors": [{"name": "add_2"}]}}], )"
                    R"("outputs": [{"as_tensor": {"name": "chosen"}}]})",
                "cond")
          .ValueOrThrow();
}

// PATH = JSON, remove PATH, copy PATH to PATH, add cond.
void Edit(JsonValue& root, const std::string& edit) {
  if (edit == "add cond") {
    AddCond(root);
    return;
  }
  if (edit.starts_with("remove ")) {
    const std::string path = LongPath(edit.substr(7));
    const size_t slash = path.rfind('/');
    JsonValue& parent = At(root, slash == std::string::npos ? "" : path.substr(0, slash));
    const std::string key = path.substr(slash == std::string::npos ? 0 : slash + 1);
    if (parent.is_array()) {
      parent.AsArray().erase(parent.AsArray().begin() + std::stoi(key));
    } else {
      REQUIRE(parent.AsObject().erase(key) == 1);
    }
  } else if (edit.starts_with("copy ")) {
    const size_t to = edit.find(" to ");
    const JsonValue copied = At(root, LongPath(edit.substr(5, to - 5)));
    At(root, LongPath(edit.substr(to + 4))) = copied;
  } else {
    const size_t equals = edit.find(" = ");
    REQUIRE(equals != std::string::npos);
    At(root, LongPath(edit.substr(0, equals))) = ParseJson(edit.substr(equals + 3), "the edit").ValueOrThrow();
  }
}

const std::map<std::string, std::string> kEntryOf = {{"model", kModelJson},
                                                     {"record", kRecordJson},
                                                     {"weights", "data/weights/model_weights_config.json"},
                                                     {"constants", "data/constants/model_constants_config.json"}};

// "model: EDIT | record: EDIT | EDIT": the entry holds for what follows.
Entries Edited(const std::string& edits) {
  Entries entries = SmallEntries();
  std::map<std::string, JsonValue> values;
  std::string entry;
  for (std::string edit : Split(edits, '|')) {
    edit = Trimmed(edit);
    for (const auto& [name, path] : kEntryOf) {
      if (!edit.starts_with(name + ": ")) continue;
      entry = path;
      edit = edit.substr(name.size() + 2);
    }
    const auto [value, fresh] = values.try_emplace(entry);
    if (fresh) value->second = SmallJson(entry);
    Edit(value->second, edit);
  }
  for (const auto& [name, value] : values) entries[name] = WriteJson(value, 0);
  return entries;
}

}  // namespace

TEST_CASE("an exported program is read as its tree, tensors, sizes, calls and nodes") {
  const ProgramArchive archive = ProgramArchive::Open(kProgramFolder + "small.pt2").ValueOrThrow();
  const ExportedProgram program = ReadProgram(archive).ValueOrThrow();
  CHECK(program.file == kProgramFolder + "small.pt2");
  CheckGolden(kProgramFolder + "small.txt", ProgramText(program));
  // In memory, and packed by others, it is the same.
  CHECK(ProgramText(ReadBytes(SmallBytes()).ValueOrThrow()) == ProgramText(program));
  CHECK(ProgramText(ReadEntries(SmallEntries()).ValueOrThrow()) == ProgramText(program));
}

TEST_CASE("the graphs of cond are in the list, and their values are its own") {
  const ExportedProgram program = ReadEntries(Edited("model: add cond")).ValueOrThrow();
  const std::string text = ProgramText(program);
  INFO(text);
  CHECK(text.find("node branch cond(true)\n"
                  "node aten::relu(self=%add_2) %y:13[2~, 6~, 8]\n"
                  "node else cond()\n"
                  "node aten::gelu(self=%add_2) %y:13[2~, 6~, 8]\n"
                  "node join cond(%y, %y) %chosen:13[2~, 6~, 8]\n") != std::string::npos);
  const std::vector<ProgramNode>& nodes = program.graph.nodes;
  const ProgramNode& join = nodes.back();
  REQUIRE(join.inputs.size() == 2);
  CHECK(join.inputs[0].second.value == nodes[nodes.size() - 4].outputs[0]);
  CHECK(join.inputs[1].second.value == nodes[nodes.size() - 2].outputs[0]);
}

TEST_CASE("what a program does not keep of its model is a warning of training") {
  const ExportedProgram program =
      ReadEntries(Edited(R"(record: not_kept = [{"kind": "backward", "name": "GELU"}, {"kind": "buffer", "name": "n"},)"
                         R"( {"kind": "attribute", "name": "count"}])"))
          .ValueOrThrow();
  const std::string text = ToText(NotKeptByTraining(program));
  INFO(text);
  CHECK(text.find("the program does not have the backward that the autograd function 'GELU' defines") !=
        std::string::npos);
  CHECK(text.find("the program does not update the buffer 'n'") != std::string::npos);
  CHECK(text.find("the program does not update the attribute 'count'") != std::string::npos);
  CHECK_FALSE(HasErrors(NotKeptByTraining(program)));
}

TEST_CASE("a size has its value as in Python, and none where it has none") {
  const std::map<std::string, int64_t, std::less<>> symbols = {
      {"a", 7}, {"z", 0}, {"n", -7}, {"big", INT64_MAX}, {"low", INT64_MIN}};
  const auto value = [&](const std::string& text) -> std::string {
    const ExportedProgram program = ReadEntries(Edited("record: outputs/0/shape = [" + text + "]")).ValueOrThrow();
    const std::optional<int64_t> number = program.outputs[0].shape[0].Evaluate(symbols);
    return number ? std::to_string(*number) : "none";
  };
  for (const auto& [text, want] :
       std::vector<std::pair<std::string, std::string>>{{R"(["floordiv", "n", 2])", "-4"},
                                                        {R"(["mod", "n", 4])", "1"},
                                                        {R"(["mod", "a", -4])", "-1"},
                                                        {R"(["floordiv", "a", "z"])", "none"},
                                                        {R"(["mod", "a", "z"])", "none"},
                                                        {R"(["floordiv", "low", -1])", "none"},
                                                        {R"(["mod", "low", -1])", "0"},
                                                        {R"(["mod", "low", 7])", "6"},
                                                        {R"(["truediv", "low", 7])", "none"},
                                                        {R"(["truediv", "low", -1])", "none"},
                                                        {R"(["truediv", "a", 2])", "none"},
                                                        {R"(["truediv", 8, 2])", "4"},
                                                        {R"(["add", "big", 1])", "none"},
                                                        {R"(["mul", "big", 2])", "none"},
                                                        {R"(["mul", "low", -1])", "none"},
                                                        {R"(["add", "a", 1, 2])", "10"},
                                                        {R"(["pow", 2, 62])", "4611686018427387904"},
                                                        {R"(["pow", 2, 63])", "none"},
                                                        {R"(["pow", -1, "big"])", "-1"},
                                                        {R"(["pow", 1, "big"])", "1"},
                                                        {R"(["pow", "z", 0])", "1"},
                                                        {R"(["pow", "z", "big"])", "0"},
                                                        {R"(["pow", 2, -1])", "none"},
                                                        {R"(["pow", "a", "big"])", "none"},
                                                        {R"(["min", "a", "n", 3])", "-7"},
                                                        {R"(["max", "a", "n"])", "7"},
                                                        {R"(["select", ["lt", "a", 3], ["floordiv", 1, 0], 5])", "5"},
                                                        {R"(["select", "unknown", 1, 2])", "none"},
                                                        {R"(["not", "a"])", "0"},
                                                        {R"(["and", 1, "a", ["ge", "a", 7]])", "1"},
                                                        {R"(["or", 0, false])", "0"},
                                                        {R"(["text", "a mod 2"])", "none"},
                                                        {R"("unknown")", "none"},
                                                        {R"(["eq", true, 1])", "1"},
                                                        {R"(["ne", "a", "n"])", "1"}}) {
    INFO(text);
    CHECK(value(text) == want);
  }
}

// broken.txt: a line of edits (see Edited), below it what is said of the program then. APPROVE=1 writes what is said.
TEST_CASE("a program that is broken is refused with the place") {
  const std::string file = kProgramFolder + "broken.txt";
  std::string out;
  size_t cases = 0;
  for (const std::string& line : Split(ReadWholeFile(file), '\n')) {
    if (line.starts_with("  ")) continue;
    if (!line.empty() || !out.ends_with("\n\n")) out += line + "\n";
    if (line.empty() || line.starts_with("#")) continue;
    INFO(line);
    const std::string refusal = Refusal(ReadEntries(Edited(line)));
    out += "  " + (refusal.empty() ? "is accepted" : refusal) + "\n";
    ++cases;
  }
  while (out.ends_with("\n\n")) out.pop_back();
  CHECK(cases >= 100);
  CheckGolden(file, out);
}

// Under sanitizers, which make reading ten times as slow, each of these tries one of nine changes; of neighbours,
// others.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kOneOf = 9;
#else
constexpr size_t kOneOf = 1;
#endif

TEST_CASE("an archive that is cut off anywhere is refused") {
  const std::string& bytes = SmallBytes();
  for (size_t length = 0; length < bytes.size(); length += 64 * kOneOf) {
    INFO(length);
    CHECK(Refusal(ReadBytes(bytes.substr(0, length))).starts_with("x.pt2"));
  }
  CHECK(Refusal(ReadBytes(bytes.substr(0, bytes.size() - 1))).starts_with("x.pt2"));
}

TEST_CASE("of a file that is not an archive the message asks for an archive and not for another export") {
  const ScratchFolder scratch;
  const std::string text = scratch.Write("x.pt2", "version https://git-lfs.github.com/spec/v1\n");
  const std::string empty = scratch.Write("y.pt2", "");
  for (const std::string& file : {text, empty, kProgramFolder + "make_small.py"}) {
    for (const Result<ProgramArchive>& archive :
         {ProgramArchive::Open(file), ProgramArchive::FromBytes(ReadWholeFile(file), file)}) {
      REQUIRE_FALSE(archive.ok());
      const Diagnostic& d = archive.diagnostics().front();
      INFO(d.ToText());
      CHECK(d.finding == Finding::kBadProgram);
      CHECK(d.path == file);
      CHECK(d.message == (file == empty ? "the program is an empty file"
                                        : "the file is not an exported program: it is not a zip archive"));
      CHECK(d.required == "an archive (.pt2), or a directory of archives with its index.json");
      CHECK(d.ToText().find("export the model again") == std::string::npos);
    }
  }
}

TEST_CASE("a flipped bit of what is read is found") {
  const std::string& bytes = SmallBytes();
  const std::string text = ProgramText(ReadBytes(bytes).ValueOrThrow());
  size_t refused = 0;
  for (size_t at = 0; at < bytes.size(); at += 397 * kOneOf) {
    INFO(at);
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (at % 8)));
    const Result<ExportedProgram> program = ReadBytes(flipped);
    if (!Refusal(program).empty()) ++refused;
    // What is no part of the program may change: dates, entries for torch.
    if (program.ok()) CHECK(ProgramText(program.value()) == text);
  }
  CHECK(refused * 397 * kOneOf > SmallEntries().at(kModelJson).size());
}

TEST_CASE("an archive of other entries is refused") {
  const auto without = [](const std::string& name) {
    Entries entries = SmallEntries();
    REQUIRE(entries.erase(name) == 1);
    return Refusal(ReadEntries(entries));
  };
  CHECK(without(kModelJson) == "x.pt2: the archive has no entry 'models/model.json'");
  CHECK(without(kRecordJson) == "x.pt2: the archive has no entry 'extra/moonshard.json'");
  CHECK(without("data/constants/model_constants_config.json") == "x.pt2: the values of 'layers.0.scale' are missing");
  CHECK(without("data/constants/tensor_0") ==
        "x.pt2: data/constants/model_constants_config.json: tensor 'lifted_tensor_0': the archive has no entry "
        "'data/constants/tensor_0'");
  CHECK(without("data/weights/weight_0").find("has no entry 'data/weights/weight_0'") != std::string::npos);
  CHECK(without("data/weights/model_weights_config.json").empty());  // weights are of checkpoints

  const auto with = [](const std::function<void(std::vector<ZipEntry>&)>& change) {
    std::vector<ZipEntry> entries;
    for (const auto& [name, bytes] : SmallEntries()) entries.push_back({"x/" + name, bytes});
    change(entries);
    return Refusal(ReadBytes(StoredZip(entries)));
  };
  constexpr uint16_t kDeflated = 8;
  CHECK(with([](auto& entries) { entries[0].method = kDeflated; }) ==
        "x.pt2: entry '" + SmallEntries().begin()->first + "' is compressed or encrypted");
  CHECK(with([](auto& entries) { entries[0].flags = 1; }).find("is compressed or encrypted") != std::string::npos);
  CHECK(with([](auto& entries) { entries.push_back(entries[0]); }).starts_with("x.pt2: "));
  CHECK(with([](auto& entries) {
          entries.push_back({"y/models/model.json", "{}"});
        }) == "x.pt2: two entries of the archive have the name 'models/model.json'");
  CHECK(with([](auto& entries) { entries.clear(); }).starts_with("x.pt2: "));
  CHECK(Refusal(ReadBytes("")).starts_with("x.pt2: "));
  CHECK(Refusal(ReadBytes("PK")).starts_with("x.pt2: the program is not a readable zip archive"));
  CHECK(ReadBytes("PK").diagnostics().front().help.starts_with("export the model again"));

  const auto text = [](const char* entry, const std::string& content) {
    Entries entries = SmallEntries();
    entries[entry] = content;
    return Refusal(ReadEntries(entries));
  };
  for (const char* entry : {kModelJson, kRecordJson, "data/weights/model_weights_config.json"}) {
    INFO(entry);
    for (const std::string& content :
         {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("{\"a\":1,\"a\":2}"),
          std::string("{}x"), std::string("\xff"), std::string(200, '[') + std::string(200, ']')}) {
      INFO(content);
      CHECK(text(entry, content).starts_with(std::string("x.pt2: ") + entry));
    }
  }

  const ScratchFolder folder;
  CHECK(ProgramArchive::Open(folder / "none.pt2").diagnostics().at(0).finding == Finding::kFileNotFound);
  CHECK(ProgramArchive::Open(folder.path()).diagnostics().at(0).finding == Finding::kFileUnreadable);
  folder.Write("text.pt2", "text");
  CHECK(ProgramArchive::Open(folder / "text.pt2").diagnostics().at(0).finding == Finding::kBadProgram);
  CHECK(IsProgramPath("a/b.pt2"));
  CHECK_FALSE(IsProgramPath("a/b.pt"));
}

namespace {
// The paths of all values, one for those that differ in the index in an array or in the key of an object of many.
void AddPaths(const JsonValue& value, const std::string& path, const std::string& form,
              std::map<std::string, std::string>& paths) {
  paths.try_emplace(form, path);
  if (value.is_array()) {
    for (size_t i = 0; i < value.AsArray().size(); ++i) {
      AddPaths(value.AsArray()[i], path + "/" + std::to_string(i), form + "/*", paths);
    }
  } else if (value.is_object()) {
    const bool table = form.ends_with("/tensor_values") || form.ends_with("/tensors") || form.ends_with("/symbols") ||
                       form.ends_with("/config");
    for (const auto& [key, inner] : value.AsObject())
      AddPaths(inner, path + "/" + key, form + "/" + (table ? "*" : key), paths);
  }
}

}  // namespace

TEST_CASE("any value of the texts may be absent or another one") {
  size_t edits = 0;
  size_t number = 0;
  for (const auto& [name, entry] : kEntryOf) {
    std::map<std::string, std::string> paths;
    AddPaths(SmallJson(entry), "", "", paths);
    for (const auto& [form, path] : paths) {
      if (path.empty()) continue;
      std::vector<std::string> each = {"remove " + path.substr(1)};
      for (const char* value : {"null", "true", "-1", "4611686018427387904", "1.5", "\"x\"", "[{}]",
                                "{\"as_tensor\":{\"name\":\"ids\"}}"}) {
        each.push_back(path.substr(1) + " = " + value);
      }
      ++number;
      for (size_t i = number % kOneOf; i < each.size(); i += kOneOf) {
        const std::string& edit = each[i];
        INFO(name << ": " << edit);
        Refusal(ReadEntries(Edited(name + ": " + edit)));
        ++edits;
      }
    }
  }
  CHECK(edits > 3000 / kOneOf);
}

namespace {

// The values of the keys of a record by the form of their path: those in which names, indices and symbols are "*".
void AddKeys(const JsonValue& value, const std::string& path, const std::string& form,
             std::map<std::string, std::string>& keys) {
  static const std::set<std::string> kTables = {
      "/tensors", "/symbols", "/valid", "/options/example", "/operators", "/weights/tensors", "/weights/unsupported"};
  if (value.is_array()) {
    for (size_t i = 0; i < value.AsArray().size(); ++i) {
      AddKeys(value.AsArray()[i], path + "/" + std::to_string(i), form + "/*", keys);
    }
  } else if (value.is_object() && form != "/fixed") {
    const bool table = kTables.contains(form) || form.ends_with("/dict");
    for (const auto& [key, inner] : value.AsObject()) {
      if (!table) keys.try_emplace(form + "/" + key, path + "/" + key);
      AddKeys(inner, path + "/" + key, form + (table ? "/*" : "/" + key), keys);
    }
  }
}

// Whether some value of a key is refused: then the reader reads the key.
bool IsRead(const std::string& model, const JsonValue& record, const std::string& path) {
  for (const char* value : {"-1", "{\"value\": 3}", "\"?\"", "true", "[{}]"}) {
    JsonValue edited = record;
    At(edited, path) = ParseJson(value, "the edit").ValueOrThrow();
    if (!ParseProgram(model, WriteJson(edited, 0), "x.pt2").ok()) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("every key of a record is read, except those that the exporter does not write any more") {
  const std::set<std::string> written_once = {"/calls/*/inputs/*/*/object",
                                              "/modules/*/defined_in",
                                              "/operators",
                                              "/options/weights",
                                              "/outputs/*/dtype",
                                              "/outputs/*/value",
                                              "/tensors/*/mutated",
                                              "/tensors/*/value",
                                              "/valid/*/dim",
                                              "/valid/*/input",
                                              "/weights/files",
                                              "/weights/missing",
                                              "/weights/unused"};
  std::vector<std::string> files = {kProgramFolder + "small.pt2"};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(SourcePath("tests"))) {
    const std::string file = entry.path().string();
    if (file.ends_with(".pt2") && file != files.front()) files.push_back(file);
  }
  CHECK(files.size() > 100);
  std::ranges::sort(files.begin() + 1, files.end());
  std::set<std::string> seen;
  std::set<std::string> unread;
  for (const std::string& file : files) {
    const ProgramArchive archive = ProgramArchive::Open(file).ValueOrThrow();
    if (!archive.Has(kRecordJson)) continue;
    const JsonValue record = ParseJson(archive.Read(kRecordJson).ValueOrThrow(), file).ValueOrThrow();
    std::map<std::string, std::string> keys;
    AddKeys(record, "", "", keys);
    std::string model;
    for (const auto& [form, path] : keys) {
      if (!seen.insert(form).second) continue;
      INFO(file << ": " << form);
      if (model.empty()) model = archive.Read(kModelJson).ValueOrThrow();
      if (!IsRead(model, record, path.substr(1))) unread.insert(form);
    }
    if (file == files.front()) CHECK(unread == std::set<std::string>());  // made by the exporter of this version
  }
  CHECK(unread == written_once);
}

TEST_CASE("what is nested deeply is read to a depth and refused beyond it") {
  // A graph in a graph: the innermost doubles its value, the others hand it on.
  const auto graphs = [](int depth) {
    JsonValue model = SmallJson(kModelJson);
    JsonValue region = At(model, LongPath("NODES/2"));
    At(region, "inputs/2/name") = "";
    for (int i = 1; i < depth; ++i) {
      const JsonValue inner = region;
      At(region, "inputs/1/arg/as_graph/graph/nodes") = JsonValue::Array{inner};
      At(region, "inputs/1/arg/as_graph/graph/outputs") = At(region, "outputs");
      At(region, "inputs/1/arg/as_graph/graph/inputs/0") = At(region, "inputs/2/arg");
    }
    At(model, LongPath("NODES/2")) = region;
    Entries entries = SmallEntries();
    entries[kModelJson] = WriteJson(model, 0);
    return Refusal(ReadEntries(entries));
  };
  CHECK(graphs(1).empty());
  CHECK(graphs(4).empty());
  CHECK(graphs(16).empty());
  CHECK(graphs(17) == "x.pt2: models/model.json:1: objects and arrays are nested deeper than 127 levels");

  const auto nested = [](const std::string& edit, const std::string& front, const std::string& middle,
                         const std::string& back, size_t depth) {
    Entries entries = SmallEntries();
    std::string text = middle;
    for (size_t i = 0; i < depth; ++i) text = front + text + back;
    const size_t colon = edit.find(": ");
    JsonValue value = SmallJson(kEntryOf.at(edit.substr(0, colon)));
    JsonValue marked = value;
    At(marked, LongPath(edit.substr(colon + 2))) = "MARK";
    entries[kEntryOf.at(edit.substr(0, colon))] = Replaced(WriteJson(marked, 0), "\"MARK\"", text);
    return Refusal(ReadEntries(entries));
  };
  CHECK(nested("record: guards/0/condition", "[\"not\",", "1", "]", 60).empty());
  CHECK(nested("record: guards/0/condition", "[\"not\",", "1", "]", 70) ==
        "x.pt2: extra/moonshard.json: 'guards': an expression is nested more than 64 deep");
  CHECK(nested("record: guards/0/condition", "[\"not\",", "1", "]", 100'000) ==
        "x.pt2: extra/moonshard.json:1: objects and arrays are nested deeper than 127 levels");
  const std::string recipe = "record: weights/tensors/embed.weight/0";
  CHECK(nested(recipe, R"({"dim":0,"index":0,"select":)", R"({"tensor":"a"})", "}", 60).empty());
  CHECK(nested(recipe, R"({"dim":0,"index":0,"select":)", R"({"tensor":"a"})", "}", 70) ==
        "x.pt2: extra/moonshard.json: the recipe of 'embed.weight': a recipe is nested more than 64 deep");
  CHECK(nested("record: calls/0/outputs", R"({"tuple":[)", R"({"value":"ids"})", "]}", 30).empty());
  CHECK(nested("record: calls/0/outputs", R"({"dict":{"a":)", R"({"value":"ids"})", "}}", 60).empty());
  CHECK(nested("model: NODES/1/inputs/1/arg", R"({"as_optional_tensor":)", R"({"as_tensor":{"name":"ids"}})", "}", 100)
            .empty());
  CHECK(nested("model: NODES/1/inputs/1/arg", R"({"as_optional_tensor":)", "{}", "}", 100) ==
        "x.pt2: models/model.json: node 'embedding': an argument is not an object with exactly one field");
  std::string stack = "embed@0,embed,a.B";
  for (int i = 0; i < 128; ++i) stack += ";embed@0,embed,a.B";
  CHECK(Refusal(ReadEntries(Edited("model: NODES/1/metadata/nn_module_stack = \"" + stack + "\""))) ==
        "x.pt2: models/model.json: node 'embedding': its modules are nested more than 128 deep");
}

TEST_CASE("the first of tied tensors may come behind the others") {
  const ExportedProgram program =
      ReadEntries(Edited("record: ties = [[\"head.weight\", \"embed.weight\"]]")).ValueOrThrow();
  for (const ProgramTensor& tensor : program.tensors) {
    if (tensor.name == "embed.weight")
      CHECK(program.tensors.at(static_cast<size_t>(tensor.tied_to)).name == "head.weight");
    if (tensor.name == "head.weight") CHECK(tensor.tied_to == -1);
  }
}

TEST_CASE("a short text does not stand for much memory") {
  // Many numbered tensors of long names.
  const std::string name(100'000, 'n');
  Entries entries = SmallEntries();
  JsonValue record = SmallJson(kRecordJson);
  At(record, "weights/tensors/embed.weight") =
      ParseJson(R"([{"stack": ")" + name + R"({}", "count": 9223372036854775807, "dim": 0}])", "recipe").ValueOrThrow();
  entries[kRecordJson] = WriteJson(record, 0);
  CHECK(Refusal(ReadEntries(entries)) ==
        "x.pt2: extra/moonshard.json: the recipe of 'embed.weight': the recipes name too many tensors");
}

}  // namespace moonshard::test

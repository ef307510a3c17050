#include "tests/cases/families/family.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/plan/compile/local_shape.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"

namespace moonshard {
namespace {

namespace fs = std::filesystem;

const std::string kSource = test::SourcePath();

std::vector<int64_t> Shape(const JsonValue& json) {
  std::vector<int64_t> shape;
  for (const JsonValue& size : json.AsArray()) shape.push_back(size.AsInt());
  return shape;
}

// A file that ends after its header.
void WriteHeaders(const std::string& path, const std::string& dtype, const JsonValue::Object& tensors) {
  JsonValue::Object header;
  int64_t begin = 0;
  for (const auto& [name, shape] : tensors) {
    int64_t end = 2;
    for (const int64_t size : Shape(shape)) end *= size;
    end += begin;
    header[name] =
        JsonValue::Object{{"dtype", dtype}, {"shape", shape}, {"data_offsets", JsonValue::Array{begin, end}}};
    begin = end;
  }
  const std::string text = WriteJson(header, 0);
  std::ofstream file(path, std::ios::binary);
  for (size_t i = 0; i < 8; ++i) file.put(static_cast<char>(text.size() >> (8 * i)));
  file << text;
}

std::string Trimmed(std::string text) {
  std::erase(text, '`');
  const size_t begin = text.find_first_not_of(' ');
  const size_t end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

}  // namespace

void WriteModelFolder(const std::string& folder, const JsonValue& json) {
  fs::create_directories(folder);
  std::ofstream(folder + "/config.json") << WriteJson(*json.Find("config"), 2);
  WriteHeaders(folder + "/model.safetensors", json.Find("dtype")->AsString(), json.Find("tensors")->AsObject());
}

std::vector<Family> ReadFamilies(const std::string& work) {
  std::vector<Family> families;
  for (const auto& entry : fs::directory_iterator(kSource + "/tests/cases/families")) {
    if (entry.path().extension() != ".json") continue;
    Family family;
    family.name = entry.path().stem().string();
    family.folder = work + "/" + family.name;
    const JsonValue json = ReadJsonFile(entry.path().string()).ValueOrThrow();
    WriteModelFolder(family.folder, json);
    for (const auto& [option, value] : json.Find("options")->AsObject()) family.options[option] = value.AsString();
    for (const auto& [path, entry_of] : json.Find("reference")->AsObject()) {
      ReferenceShard shard;
      shard.dim = entry_of.Find("dim")->AsInt();
      for (const int64_t tp : {2, 4}) shard.local_shape[tp] = Shape(*entry_of.Find(std::to_string(tp)));
      family.reference[path] = shard;
    }
    families.push_back(std::move(family));
  }
  std::ranges::sort(families, {}, &Family::name);
  return families;
}

Result<CompiledPlan> Resolve(const Family& family, int64_t tp, const std::map<std::string, std::string>& options) {
  return Resolve(family, "tp=" + std::to_string(tp), options);
}

Result<CompiledPlan> Resolve(const Family& family, const std::string& mesh,
                             const std::map<std::string, std::string>& options) {
  ModelOptions model;
  model.model = family.folder;
  model.mesh = mesh;
  model.options = family.options;
  for (const auto& [name, value] : options) model.options[name] = value;
  return ResolveFromHeaders(model);
}

std::map<std::string, Held> HeldBy(const CompiledPlan& plan) {
  std::map<std::string, Held> out;
  const ModuleTree& tree = *plan.tree;
  for (uint32_t m = 0; m < tree.modules().size(); ++m) {
    const ModuleTree::Signature& signature = tree.parameters(tree.modules()[m]);
    for (uint32_t p = 0; p < signature.size(); ++p) {
      if (signature[p].is_buffer) continue;
      const Placement& placement = plan.LayoutsOf(m).params[p];
      const Layout& layout = placement[MeshAxis::kTp];
      const std::string kind = layout.parts.empty() ? "shard" : "packed";
      out[tree.PathOf({m, p})] = {layout.is_shard() ? kind + "(" + std::to_string(layout.dim) + ")" : "replicate",
                                  LocalShape(signature[p].shape, placement, plan.mesh, 0)};
    }
  }
  return out;
}

std::vector<std::vector<std::string>> ReadTable(const std::string& heading) {
  std::vector<std::vector<std::string>> rows;
  bool inside = false;
  for (const std::string& line : Split(ReadWholeFile(kSource + "/plans/README.md"), '\n')) {
    if (line.starts_with("#")) inside = line == heading;
    if (!inside || !line.starts_with("|") || line.starts_with("|-")) continue;
    std::vector<std::string> cells;
    for (const std::string& cell : Split(line.substr(1, line.rfind('|') - 1), '|')) cells.push_back(Trimmed(cell));
    rows.push_back(std::move(cells));
  }
  INFO("table " << heading << " of plans/README.md");
  REQUIRE(rows.size() > 1);
  rows.erase(rows.begin());  // the names of the columns
  return rows;
}

std::vector<Difference> ReadDifferences() {
  std::vector<Difference> out;
  for (const std::vector<std::string>& row : ReadTable("## Differences from NeMo Automodel")) {
    REQUIRE(row.size() == 5);
    Difference difference{{}, row[1], row[2], row[3]};
    for (const std::string& name : Split(row[0], ',')) difference.families.push_back(Trimmed(name));
    CHECK(!row[4].empty());
    out.push_back(std::move(difference));
  }
  return out;
}

}  // namespace moonshard

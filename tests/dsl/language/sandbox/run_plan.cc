// run_plan FILE: takes a hostile plan the whole way to a compiled one, in a process of its own, and a good plan before
// and after it. A line "--- repeat 1000 TEXT" of the file stands for so many of TEXT. stdout: a line each of what it
// took, then what there was to say.
//
//   cpu_ms 501        CPU time of the hostile plan
//   peak_kib 20480    most memory that the process ever held (VmHWM)
//   next same         whether the good plan gave the same after it: "same" or "differs"
//   ok                or the diagnostics, one "ID message" a line, and ok where none is an error
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "dsl/planning/resolve_model/resolve_model.h"
#include "tests/dsl/inputs.h"
#include "tests/support/golden.h"

namespace {

// Uses every part that a hostile plan could have broken: words, libraries, patterns, sorting, options, poison's
// absence.
constexpr const char* kGoodPlan = R"(
local opt <const> = options { sequence_parallel = false }
local list <const> = {}
for key, value in pairs { b = 2, a = 1, [3] = "c" } do table.insert(list, tostring(key) .. value) end
table.sort(list)
return plan {
  at(("model.layers.*.%s"):format(table.concat(list, "_"):gsub("_", ".")), colwise { heads = config.num_attention_heads }),
  at(string.rep("x", 3), rowwise { output = opt.sequence_parallel and shard(1) or replicate }),
  divides(mesh.tp, math.max(2, #("abcd"))),
})";

double CpuMs() { return 1000.0 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string PeakKib() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmHWM:" && status >> word) return word;
  }
  return "0";
}

std::string Expanded(const std::string& text) {
  const std::string word = "--- repeat ";
  std::istringstream lines(text);
  std::string out;
  bool comment = false;  // whether the line before is one
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(word)) {
      comment = line.starts_with("---");
      out += line + (lines.eof() && !text.ends_with('\n') ? "" : "\n");
      continue;
    }
    if (!comment && out.ends_with('\n')) out.pop_back();  // it goes on with the line before
    const size_t space = line.find(' ', word.size());
    comment = false;
    for (long i = std::stol(line.substr(word.size())); i > 0; --i) out.append(line, space + 1);
  }
  return out;
}

moonshard::Diagnostics Try(const std::string& text, const std::string& name) {
  const auto tree = std::make_shared<const moonshard::ModuleTree>(moonshard::SmallLlama());
  moonshard::PlanInputs inputs = moonshard::LlamaInputs(2);
  inputs.model = tree.get();
  moonshard::Diagnostics said;
  std::optional<moonshard::Plan> plan = moonshard::EvaluatePlan(text, name, inputs).Collect(said);
  if (!plan) return said;
  const moonshard::Resolution resolved =
      moonshard::RunPasses(std::make_shared<const moonshard::Plan>(*std::move(plan)), tree, inputs.mesh);
  said.insert(said.end(), resolved.diagnostics.begin(), resolved.diagnostics.end());
  return said;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string file = argv[1];
  const std::string name = file.substr(file.rfind('/') + 1);
  const std::string text = Expanded(moonshard::ReadWholeFile(file));
  const std::string before =
      moonshard::TextOf(moonshard::EvaluatePlan(kGoodPlan, "good.lua", moonshard::LlamaInputs(2)));
  const double start = CpuMs();
  const moonshard::Diagnostics said = Try(text, name);
  const double spent = CpuMs() - start;
  const std::string after =
      moonshard::TextOf(moonshard::EvaluatePlan(kGoodPlan, "good.lua", moonshard::LlamaInputs(2)));
  std::cout << "cpu_ms " << static_cast<long>(spent) << "\npeak_kib " << PeakKib() << "\nnext "
            << (after == before && before.starts_with("plan good api=1\n") ? "same" : "differs") << "\n";
  for (const moonshard::Diagnostic& d : said) {
    std::cout << moonshard::InfoOf(d.finding).id << " " << moonshard::SafeText(d.message, 8000) << "\n";
  }
  if (!moonshard::HasErrors(said)) std::cout << "ok\n";
  return 0;
}

// The engine against Python's torch, to the bit: each committed program runs one step in this process and one in Python
// (programs/run_graph.py), by the same kernels of one libtorch_cpu.so, on one thread each. Every output and every
// gradient must have the same bits. That holds on any processor, as both sides choose their kernels by the same one;
// what another machine recorded is compared within bounds (programs_test.cc).
//
// Where no Python imports the torch of this build, the test is shown as skipped: where LibTorch is not a Python's, or
// is a wheel without the CUDA libraries that Python loads.
#include <catch2/catch.hpp>

#include <link.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <sstream>

#include "dsl/language/eval/load_plan.h"
#include "engine/io/safetensors/checkpoint.h"
#include "engine/models/program/program.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/sharded_model/load.h"
#include "tests/engine/models/fixture.h"
#include "tests/parity/setup.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

const std::filesystem::path kGraphs = std::filesystem::path(SourcePath("tests/parity/programs"));

// The folder of the LibTorch that this process runs: above the lib/ of its libtorch_cpu.so.
std::filesystem::path TorchFolder() {
  std::filesystem::path library;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::filesystem::path path = info->dlpi_name;
        if (path.filename() != "libtorch_cpu.so") return 0;
        *static_cast<std::filesystem::path*>(found) = path;
        return 1;
      },
      &library);
  return std::filesystem::canonical(library.parent_path()).parent_path();
}

// The commands of Pythons that may import that torch: those of the environment that
// .../lib/pythonX.Y/site-packages/torch is in, and the first in the PATH.
std::vector<std::vector<std::string>> Pythons(const std::filesystem::path& torch) {
  std::vector<std::vector<std::string>> out;
  const std::filesystem::path library = torch.parent_path().parent_path();
  if (library.filename().string().starts_with("python")) {
    const std::filesystem::path own = library.parent_path().parent_path() / "bin" / "python3";
    std::error_code not_ours;  // it may lead where this user may not look
    if (std::filesystem::exists(own, not_ours)) out.push_back({own.string()});
  }
  out.push_back({"/usr/bin/env", "python3"});
  return out;
}

struct PythonRun {
  std::optional<Outcome> done;  // of the script; nothing where no Python has the torch
  std::string why_not;
};

// Runs a script of programs/ with the folder of the torch and then `arguments`.
PythonRun RunInPython(const char* script, const std::vector<std::string>& arguments, const ScratchFolder& scratch) {
  const std::filesystem::path torch = TorchFolder();
  PythonRun out;
  for (std::vector<std::string> words : Pythons(torch)) {
    const std::string program = words.front();
    words.erase(words.begin());
    words.insert(words.end(), {(kGraphs / script).string(), torch.string()});
    words.insert(words.end(), arguments.begin(), arguments.end());
    constexpr double kSeconds = 240;  // alone on a core it takes less than a tenth
    // torch makes this folder when it is imported, in the temporary folder unless told.
    const std::string cache = "TORCHINDUCTOR_CACHE_DIR=" + scratch / "inductor";
    Outcome done = RunExecutable(program, words, {cache}, kSeconds);
    constexpr int kCannotImport = 77;
    constexpr int kNoSuchProgram = 127;
    if (done.code != kCannotImport && done.code != kNoSuchProgram) {
      out.done = std::move(done);
      return out;
    }
    out.why_not +=
        (out.why_not.empty() ? "" : "; ") + (done.out + done.err).substr(0, (done.out + done.err).find('\n'));
  }
  return out;
}

// What one step on one rank gives: the outputs by name and, as grad.<parameter>, the gradients. Of the names of a tied
// parameter it is the one that `names` has.
NamedTensors StepOfEngine(const std::filesystem::path& folder, const NamedTensors& names, DeviceMesh& mesh) {
  const std::shared_ptr<Program> program = Program::Open(folder / "program.pt2");
  const LiveTree live = ReadLiveTree(*program).ValueOrThrow();
  PlanInputs inputs;
  inputs.config = ReadConfig(folder);
  inputs.mesh = mesh.shape();
  inputs.model = live.tree.get();
  Plan plan = LoadPlanFile(kGraphs / "replicated.lua", inputs).ValueOrThrow();
  CompiledPlan compiled =
      ResolvePlan(std::make_shared<const Plan>(std::move(plan)), live.tree, mesh.shape()).ValueOrThrow();
  const std::shared_ptr<AppliedPlan> applied = AppliedPlan::Apply(live, std::move(compiled), mesh);
  const Checkpoint checkpoint = Checkpoint::Open(folder.string()).ValueOrThrow();
  const Diagnostics warnings = LoadCheckpoint(*applied, checkpoint, {.recipes = program->recipes()});
  Expect(warnings.empty(), "the checkpoint fits without a warning: " + ToText(warnings));

  at::manual_seed(0);
  const ProgramOutputs outputs = program->forward(ReadTensors(folder / "inputs.safetensors"));
  outputs["loss"].backward();
  NamedTensors out;
  for (const std::string& name : outputs.names()) out[name] = outputs[name].detach();
  for (const LiveParameter& parameter : applied->parameters()) {
    if (parameter.is_buffer || !parameter.tensor.grad().defined()) continue;
    std::string name = "grad." + parameter.path;
    for (const std::string& alias : parameter.aliases) {
      if (!names.contains(name)) name = "grad." + alias;
    }
    out[name] = parameter.tensor.grad();
  }
  return out;
}

bool SameBits(const at::Tensor& left, const at::Tensor& right) {
  if (left.sizes() != right.sizes() || left.scalar_type() != right.scalar_type()) return false;
  const at::Tensor a = left.contiguous();
  const at::Tensor b = right.contiguous();
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Which tensors have other bits, one per line; empty where none has.
std::string OtherBits(const NamedTensors& engine, const NamedTensors& python) {
  std::ostringstream out;
  for (const auto& [name, tensor] : engine) {
    const auto same = python.find(name);
    if (same == python.end()) {
      out << "  " << name << ": not of Python\n";
    } else if (!SameBits(tensor, same->second)) {
      out << "  " << name << ": by " << RelativeError(tensor, same->second) << "\n";
    }
  }
  for (const auto& [name, tensor] : python) {
    if (!engine.contains(name)) out << "  " << name << ": of Python alone\n";
  }
  return out.str();
}

// A script of programs/ that checks the exporter.
void ExpectGoodInPython(const char* script) {
  const ScratchFolder scratch;
  const PythonRun python = RunInPython(script, {}, scratch);
  if (!python.done) {
    Skip(python.why_not);
    return;
  }
  INFO(python.done->ToText());
  CHECK(python.done->code == 0);
}

TEST_CASE("a guard that cannot be evaluated leaves no valid size in the exporter's summary") {
  ExpectGoodInPython("check_valid.py");
}

TEST_CASE("an export that fails leaves no file, and what a graph does not keep is recorded") {
  ExpectGoodInPython("check_exporter.py");
}

TEST_CASE("a program computes what Python's torch computes of its graph, to the bit") {
  const std::vector<std::filesystem::path> folders = ProgramFolders();
  const ScratchFolder scratch;
  std::vector<std::string> arguments = {scratch.path()};
  for (const std::filesystem::path& folder : folders) arguments.push_back(folder.string());
  const PythonRun python = RunInPython("run_graph.py", arguments, scratch);
  if (!python.done) {
    Skip(python.why_not);
    return;
  }
  std::cout << "Python: " << python.done->seconds << " s\n";
  INFO(python.done->ToText());
  CHECK(python.done->code == 0);
  for (const std::filesystem::path& folder : folders) {
    const std::string name = folder.filename().string();
    INFO(name);
    const std::string file = scratch / (name + ".safetensors");
    CHECK(std::filesystem::exists(file));
    if (!std::filesystem::exists(file)) continue;
    const NamedTensors expected = ReadTensors(file);
    NamedTensors got;
    RunRanks("tp=1", [&](DeviceMesh& mesh) { got = StepOfEngine(folder, expected, mesh); });
    const std::string other = OtherBits(got, expected);
    std::cout << name << ": " << got.size() << " tensors, "
              << (other.empty() ? "all the same bits\n" : "other bits:\n" + other);
    CHECK(other == "");
  }
}

}  // namespace
}  // namespace moonshard::test

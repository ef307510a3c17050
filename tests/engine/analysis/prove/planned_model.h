// PlannedModel: a recorded model (a reference checkpoint of tests/parity, or an exported program of
// tests/parity/programs) under its plan with rules of a test in front of it, on a mesh; and its judges: what `check`
// finds, what the types say, whether operator by operator the ranks compute what one rank computes (`verify --ops`),
// and the numbers of the step: of a checkpoint in float64, of a program in its own float32.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/analysis/prove/operator_trace.h"
#include "engine/analysis/prove/type_scope.h"
#include "tests/engine/models/fixture.h"

namespace moonshard::test {

struct PlannedModel {
  std::filesystem::path folder;
  std::string mesh = "tp=2";
  std::map<std::string, bool> options = {};  // of the plan
  std::string context = {};                  // the plan's option of this name, on a mesh with cp
  int64_t tokens = 0;                        // of each row, the first ones; 0: all
  std::string prelude = {};                  // Lua, in front of the plan
  std::string rules = {};                    // Lua, comma-separated: in front of the plan's own rules
  std::function<void(Plan&)> change = {};    // after that; called on every rank, one at a time
  std::string Name() const;                  // "llama_gqa tp=2 sequence_parallel"
};

// "llama_gqa" of tests/parity, "programs/gpt2" of tests/parity/programs.
std::filesystem::path RecordedModel(const std::string& name);
// The folders of tests/parity/programs with a program and a plan, sorted.
std::vector<std::filesystem::path> PlannedPrograms();
// Names of the true-or-false options that the model's plan declares, sorted.
std::vector<std::string> BooleanOptions(const std::filesystem::path& folder);
// Whether the model's plan declares the option `context`.
bool HasContext(const std::filesystem::path& folder);
// The plan alone, as Load makes it before `change`. Throws PlanError.
Plan PlanOf(const PlannedModel& model);

// One step: "logits" (none where they are in shards), "loss", "grad.<parameter>", gathered from all ranks.
using StepNumbers = std::map<std::string, at::Tensor>;

struct Verdict {
  enum class Proof : uint8_t { kRefused, kFaults, kUnproven, kHolds };
  Proof proof = Proof::kRefused;
  std::string text;                   // of the proof, or of the refusal
  std::vector<TypeFault> faults;      // of the proof
  std::vector<std::string> warnings;  // what `check` warns of: ids of findings, sorted, each once
  std::optional<bool> ops_agree;      // none: not compared (a mesh with data-parallel ranks, a step that stopped)
  std::string ops;                    // the first operator that differs
  bool right = false;                 // by numbers
  std::string numbers;                // the largest difference and where, or what stopped the step
  bool refused() const { return proof == Proof::kRefused; }
};

// All judges. A plan that is refused is not run.
Verdict Judge(const PlannedModel& model);

}  // namespace moonshard::test

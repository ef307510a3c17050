// Report: the output of a training run: a line on stderr (overwritten on a terminal, else one line every --log-every
// steps), a file of JSON lines, and a summary at the end. Rank 0 writes; every rank calls the functions, because some
// numbers are gathered. README.md lists the fields and their units.
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "dsl/commands/cli/options.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

struct StepNumbers {
  int64_t step = 0;                   // from 1
  double loss = 0;                    // of the labels
  std::optional<double> router_loss;  // the weighted losses of the routers, which are trained besides
  double grad_norm = 0;               // before clipping
  double learning_rate = 0;
  std::optional<double> seconds;  // of the step; nullopt: since the previous step was reported
  bool skipped = false;           // the parameters are unchanged, because the loss or a gradient is not finite
  int64_t units = 0;              // tokens or examples of the step, over all ranks
  CollectiveCount collectives;    // of this rank, of all kinds
  // Of a plan that sends tokens to experts: the largest number of tokens that an expert received, as a multiple of the
  // mean over all experts, and the number of tokens that were not sent to one of their experts, over all ranks.
  std::optional<double> expert_load;
  int64_t dropped = 0;
};

// The sum over all kinds of collectives, in forward and backward.
CollectiveCount Total(const CollectiveCounts& counts);

class Report {
 public:
  // Opens the log. `unit`: what a step consists of, "tokens" or "examples". Throws PlanError (kWriteFailed) if the log
  // cannot be opened.
  Report(const TrainVerb& verb, const DeviceMesh& mesh, const World& world, std::string unit);

  // Starts the measurements; called before the first step.
  void Begin();
  // Writes a line of its own to stderr.
  void PrintFindings(const std::string& text);
  // Resumed reports the step from which the run resumes, and the changes: the options that differ from the saved ones.
  struct Change {
    std::string option;  // "--eps"
    JsonValue saved;
    JsonValue now;
  };
  void Resumed(int64_t step, const MeshShape& saved_on, const std::vector<Change>& changes);
  // Writes each diagnostic to stderr.
  void Warn(const Diagnostics& warnings);
  // Collective over the mesh.
  void Step(const StepNumbers& numbers);
  void Eval(int64_t step, double loss);
  void Saved(int64_t step);
  // Writes the summary to the log, and with --json to stdout. `stopped`: the signal that stopped the run, or 0.
  void End(const AppliedPlan& model, int64_t step, int stopped);
  // Whether this rank could not write a line of the log; the failure was reported when it occurred.
  bool log_lost() const { return log_lost_; }

 private:
  void Show(const StepNumbers& numbers, double seconds);
  void ClearLine() const;
  // The name of the field of the units per second.
  std::string Rate() const { return unit_ == "tokens" ? "tokens_per_second" : unit_ + "_per_s"; }
  void Write(const JsonValue& line);

  const TrainVerb& verb_;
  const World& world_;
  c10::Device device_;
  std::string unit_;
  bool speaks_;  // rank 0
  bool terminal_;
  std::ofstream log_;
  bool log_lost_ = false;
  std::chrono::steady_clock::time_point begin_ = {};
  std::chrono::steady_clock::time_point last_ = {};   // end of the previous step
  std::chrono::steady_clock::time_point shown_ = {};  // when the line on the terminal was written
  std::vector<int64_t> memory_;
  std::vector<int64_t> peak_memory_;  // on GPUs; else empty
  int64_t first_step_ = 0;
  int64_t units_ = 0;
  int64_t skipped_ = 0;
  StepNumbers newest_;
  std::optional<double> eval_loss_;
  std::optional<int64_t> saved_;
};

// Bytes of this process on the device: allocated by LibTorch on a GPU, resident memory on a CPU.
int64_t MemoryInUse(c10::Device device);
// The largest number of bytes that LibTorch has had allocated on a GPU so far.
int64_t PeakMemory(c10::Device gpu);

}  // namespace moonshard

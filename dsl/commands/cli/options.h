// Options: the command line of `moonshard`, parsed in one place for all verbs; moonshard-run gets the same arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/result.h"
#include "engine/layout/mesh_shape.h"

namespace moonshard {

struct ExplainVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  int64_t rank = 0;
  bool json = false;
  std::string html;            // file of the report; "-": stdout; "": none
  std::string tokens;          // "B,S"; "": see ExplainOptions
  bool passes = false;         // print the record of each pass (engine/plan/resolve) instead of the explanation
  bool memory = false;         // print the memory of a training step; needs LibTorch
  std::string dtype = "auto";  // of the parameters, for `memory`: as RunOptions::dtype
};

struct CheckVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  bool strict = false;  // warnings count as errors
};

// Prints the page of one finding, or a list of all findings.
struct ExplainFindingVerb {
  FindingsOutput findings_output;
  std::string finding;  // identifier or name; "": all
  bool json = false;
  bool markdown = false;
};

struct ImportVerb {
  FindingsOutput findings_output;
  std::string file;
  std::string key;              // selects a plan of the file; "": the only plan
  std::string base = "model.";  // path of the base model
  bool idiomatic = false;
  bool experts = false;  // import the ep_plan
};

struct ExportVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  std::string form;  // "hf" or "torch"
};

// Options of the verbs that need tensors.
struct RunOptions {
  // Of the parameters: a torch name, or auto: the dtype of the program, else of the config, else of the checkpoint.
  std::string dtype = "auto";
  std::string device = "auto";
  std::string backend = "auto";
  double timeout_s = 600;  // longest wait for another rank, in seconds
};

struct EvalVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  RunOptions run;
  std::string input;   // safetensors or JSON with the inputs of ReadInputs (step.h)
  std::string output;  // safetensors: logits, loss, every other output of a program, and with grads grad.<parameter>
  bool grads = false;
  std::string stats;          // a JSON file, or "-" for stdout; "": none
  int64_t micro_batches = 1;  // number of micro-batches; their gradients are accumulated
};

struct VerifyVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  RunOptions run = {.dtype = "float32"};
  std::string input;                // as EvalVerb::input; "": generated
  std::string tokens;               // "B,S" of a generated input; "": see MadeUpInputs
  std::optional<double> tolerance;  // largest relative difference that passes; none: from the dtype of computation
  bool types = false;               // prove the layouts of each operator, in one process without peers
  bool ops = false;                 // compare each operator, not only modules
  int64_t rank = 0;                 // with types: the rank that is checked
  std::string loss_scale;           // with types: "sum" or "mean", TypeOptions::loss_scale; "": the proof finds out
  bool json = false;                // with types: the proof on stdout
};

// A training run (dsl/commands/train/).
inline constexpr int64_t kSequence = 128;  // tokens of a sequence without --sequence

struct TrainVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  RunOptions run = {.dtype = "float32"};  // or float64, or bfloat16: autocast, with all state in float32
  std::optional<uint64_t> init;           // seed of new weights; none: the weights of the model
  std::vector<std::string> data;          // files and directories of tokens, text or examples
  std::string data_dtype = "uint16";      // of a .bin file
  std::vector<std::string> eval_data;     // held-out data
  int64_t eval_every = 0;                 // steps; 0: only at the end
  int64_t steps = 0;                      // of the whole run, including the steps before a resume
  int64_t batch = 8;                      // sequences or examples of a step, over all ranks
  std::optional<int64_t> sequence;        // tokens of a sequence; none: kSequence, or the data are examples
  int64_t micro_batches = 1;              // micro-batches per rank, with accumulated gradients
  double lr = 3e-4;
  double min_lr = 0;
  int64_t warmup = 0;               // steps
  std::string schedule = "cosine";  // after the warmup: cosine, linear or constant
  int64_t decay_steps = 0;          // step at which the decay ends; 0: the last step
  double weight_decay = 0.1;        // of parameters of two dims or more
  std::pair<double, double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double clip = 1;               // largest norm of the gradients; 0: not clipped
  int64_t check_inputs = 0;      // the tp ranks compare all inputs every so many calls; 0: only integers on the CPU
  int64_t check_replicas = 0;    // replicated parameters are compared every so many steps; 0: never
  int64_t skips = 3;             // consecutive steps that may have a non-finite loss or gradients
  std::optional<int64_t> ahead;  // steps that the host may begin before it reads the numbers of one; nullopt: by device
  std::string loss;              // next-tokens, or model: the loss that an exported program returns; "": by the data
  int64_t loss_chunk = 0;        // number of tokens whose logits are in memory at once; 0: all
  // The coefficients of the routers' losses (RouterLosses); nullopt: those of the config.
  std::optional<double> router_balance;
  std::optional<double> router_z;
  uint64_t seed = 0;                        // of the order of the data, and of dropout
  std::string save;                         // directory for the run's checkpoints; "": nothing is saved
  int64_t save_every = 0;                   // steps; 0: only at the end
  int64_t keep = 3;                         // number of checkpoints to keep; 0: all
  bool resume = false;                      // resume from the latest checkpoint in `save`, if there is one
  std::vector<std::string> accept_changes;  // allowed differences from the saved run: "data", "config"
  std::string log;                          // file of JSON lines, appended to; "": none
  int64_t grace = 20;                       // seconds without progress after a signal to stop
  int64_t log_every = 10;                   // steps between lines on a stderr that is not a terminal
  bool json = false;                        // the summary on stdout
};

// Shards a model directory into one file per rank. MergeVerb is the inverse.
struct ShardVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  std::string out;
  bool replace = false;  // replace an existing OUT
  bool json = false;
};

struct MergeVerb {
  FindingsOutput findings_output;
  std::string sharded;  // with `adapter`, a model directory
  std::string adapter;
  std::string out;
  bool replace = false;
  bool json = false;
};

struct SuggestVerb {
  ModelOptions model;            // only ModelOptions::model, program and mesh are used
  std::string context = "auto";  // "auto", "ulysses", "ring", "ulysses_ring" or "none": of the plan on a mesh with cp
  FindingsOutput findings_output;
  std::string out;  // of the plan file; "": stdout
  bool replace = false;
  bool sure = false;  // guesses stay replicated, as in the plan by structure (structure_plan.h)
};

struct CompareVerb {
  std::string actual;
  std::string expected;
  double tolerance = 2e-4;
};

struct DoctorVerb {
  RunOptions run = {.timeout_s = 30};  // without dtype
  std::string mesh;                    // without a launcher: as many local ranks; "": none
  bool json = false;
};

struct ReplVerb {
  ModelOptions model;  // an empty directory: no model
  FindingsOutput findings_output;
  std::vector<std::string> code;  // -c: lines to run
  std::string file;               // -f: file of lines to run; "-": standard input
  std::string mode = "table";     // output format of the answers
  bool bail = false;              // a script ends at its first line that fails
  bool history = true;
};

using Verb = std::variant<ExplainVerb, CheckVerb, ImportVerb, ExportVerb, EvalVerb, VerifyVerb, TrainVerb, ShardVerb,
                          MergeVerb, CompareVerb, DoctorVerb, ReplVerb, SuggestVerb, ExplainFindingVerb>;

// The FindingsOutput of a verb; the default for a verb without one.
FindingsOutput FindingsOutputOf(const Verb& verb);

// A parsed command line: a verb, or a text to print (help, version, usage error) and the exit code.
struct CommandLine {
  std::optional<Verb> verb;
  std::string text;
  int exit_code = 0;
};

// Parses argv[1..]. A command line with an error has exit_code 2 and a text for stderr.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace moonshard

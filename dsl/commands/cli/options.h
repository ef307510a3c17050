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
  bool passes = false;         // the record of each pass instead (engine/plan/resolve)
  bool memory = false;         // the memory of a training step, which needs LibTorch
  std::string dtype = "auto";  // of the parameters, for `memory`: auto (the config's, else the file's) or a torch name
};

struct CheckVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  bool strict = false;  // warnings count as errors
};

// The page of one finding, or a list of all.
struct ExplainFindingVerb {
  FindingsOutput findings_output;
  std::string finding;  // identifier or name; "": all
  bool json = false;
  bool markdown = false;
};

struct ImportVerb {
  FindingsOutput findings_output;
  std::string file;
  std::string key;              // which plan of the file; "": the only one
  std::string base = "model.";  // path of the base model
  bool idiomatic = false;
  bool experts = false;  // the ep_plan
};

struct ExportVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  std::string form;  // "hf" or "torch"
};

// How the verbs that need tensors run.
struct RunOptions {
  std::string dtype = "auto";  // of the parameters: auto (the config's, else the file's) or a torch name
  std::string device = "auto";
  double timeout_s = 600;  // longest wait for a peer
};

struct EvalVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  RunOptions run;
  std::string input;   // safetensors or JSON with input_ids [B, T], and perhaps labels, attention_mask, position_ids
  std::string output;  // safetensors: logits, loss, and with grads grad.<parameter>
  bool grads = false;
  std::string stats;          // a JSON file, or "-" for stdout; "": none
  int64_t micro_batches = 1;  // the batch in so many equal parts, gradients accumulated
};

struct VerifyVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  RunOptions run = {.dtype = "float32"};
  std::string input;                // as of eval; "": generated
  std::string tokens;               // "B,S" of a generated input; "": a length that few meshes divide
  std::optional<double> tolerance;  // largest relative difference that passes; none: by the dtype of computation
  bool types = false;               // prove the layouts of each operator, in one process without peers
  bool ops = false;                 // compare each operator, not only modules
  int64_t rank = 0;                 // with types: the rank that is checked
  bool json = false;                // with types: the proof on stdout
};

// A training run: what dsl/commands/train/ works from.
struct TrainVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  RunOptions run = {.dtype = "float32"};  // or bfloat16: matrix products under autocast, all state in float32
  std::optional<uint64_t> init;           // seed of new weights; none: the model directory's
  std::vector<std::string> data;          // files and directories of tokens or text
  std::string data_dtype = "uint16";      // of a .bin file
  std::vector<std::string> eval_data;     // held out
  int64_t eval_every = 0;                 // steps; 0: at the end alone
  int64_t steps = 0;                      // of the whole run, those before a resume included
  int64_t batch = 8;                      // rows of a step, over all ranks
  int64_t sequence = 128;                 // tokens of a row
  int64_t micro_batches = 1;              // parts that a rank works through, gradients accumulated
  double lr = 3e-4;
  double min_lr = 0;
  int64_t warmup = 0;               // steps
  std::string schedule = "cosine";  // after it: cosine, linear or constant
  int64_t decay_steps = 0;          // where the decay ends; 0: with the run
  double weight_decay = 0.1;        // of parameters of two dims or more
  std::pair<double, double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double clip = 1;           // largest norm of the gradients; 0: not clipped
  int64_t check_inputs = 0;  // every how many calls the ranks of tp compare all inputs; 0: integers on the CPU alone
  int64_t skips = 3;         // steps in a row that may have no finite loss or gradients
  int64_t loss_chunk = 0;    // tokens whose logits exist at a time; 0: all
  uint64_t seed = 0;         // of the order of the data, and of dropout
  std::string save;          // directory for the run's steps; "": nothing is saved
  int64_t save_every = 0;    // steps; 0: at the end alone
  int64_t keep = 3;          // saved steps that are kept; 0: all
  bool resume = false;       // from the latest step in `save`, if there is one
  std::vector<std::string> accept_changes;  // what may differ from the saved run all the same: "data", "config"
  std::string log;                          // file of JSON lines, appended to; "": none
  int64_t log_every = 10;                   // steps between lines on a stderr that is not a terminal
  bool json = false;                        // the summary on stdout
};

// A model directory to one file per rank; and MergeVerb back.
struct ShardVerb {
  ModelOptions model;
  FindingsOutput findings_output;
  std::string out;
  bool replace = false;  // overwrite what OUT holds
  bool json = false;
};

struct MergeVerb {
  FindingsOutput findings_output;
  std::string sharded;
  std::string out;
  bool replace = false;
  bool json = false;
};

struct SuggestVerb {
  ModelOptions model;  // the directory alone
  FindingsOutput findings_output;
  std::string out;  // of the plan file; "": stdout
  bool replace = false;
  bool sure = false;  // guesses stay replicated, as in the plan that is chosen by structure
};

struct CompareVerb {
  std::string actual;
  std::string expected;
  double tolerance = 2e-4;
};

struct DoctorVerb {};

struct ReplVerb {
  ModelOptions model;  // an empty directory: no model
  FindingsOutput findings_output;
  std::vector<std::string> code;  // lines to run: -c
  std::string file;               // of lines to run: -f; "-": standard input
  std::string mode = "table";     // the form of answers
  bool bail = false;              // a script ends at its first line that fails
  bool history = true;
};

using Verb = std::variant<ExplainVerb, CheckVerb, ImportVerb, ExportVerb, EvalVerb, VerifyVerb, TrainVerb, ShardVerb,
                          MergeVerb, CompareVerb, DoctorVerb, ReplVerb, SuggestVerb, ExplainFindingVerb>;

// The form in which a verb reports its findings.
FindingsOutput FindingsOutputOf(const Verb& verb);

// A parsed command line: a verb, or a text to print (help, version) and the exit code to end with.
struct CommandLine {
  std::optional<Verb> verb;
  std::string text;
  int exit_code = 0;
};

// Parses argv[1..]. One with an error has exit_code 2 and a text for stderr.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace moonshard

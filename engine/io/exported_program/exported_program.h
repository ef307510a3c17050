// ExportedProgram: a model exported by torch.export (.pt2), as plain data: the graph of operators, the parameters and
// constants of the graph, and for each operator the module call to which the operator belongs. Reading a program runs
// no operator and allocates no tensor. Therefore `explain`, `check`, `suggest` and the REPL accept a program in place
// of a model directory.
//
//   model.pt2 (a zip)   models/model.json        graph, signature, guards: torch's schema, major version 8
//                       data/weights/...         values of parameters, absent if the program was exported without them
//                       data/constants/...       values of constants and of buffers that no checkpoint contains
//                       data/sample_inputs/...   example inputs, for Python's torch.export.load; not read here
//                       extra/moonshard.json     the record that the exporter adds: format 1 of
//                                                engine/models/program/export/README.md
//
// Stage before: program_archive.h, the reader. Stages after: tree (ProgramTree); engine/models/program, which runs it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/base/json.h"
#include "engine/core/base/result.h"
#include "engine/io/safetensors/weight_recipe.h"
#include "engine/layout/dtype.h"
#include "engine/layout/module_tree.h"

namespace moonshard {

// An integer expression of sizes that vary between calls, or a condition on such expressions.
struct SizeExpression {
  enum class Op : uint8_t {
    kNumber,  // `number`
    kSymbol,  // `text`
    kAdd,
    kMul,
    kMin,
    kMax,
    kFloorDiv,  // as in Python: rounds towards minus infinity
    kMod,       // as in Python: has the sign of the divisor
    kPow,
    kTrueDiv,
    kEq,
    kNe,
    kLt,
    kLe,
    kGt,
    kGe,
    kAnd,
    kOr,
    kNot,
    kSelect,  // condition, value if true, value if false
    kText,    // `text`: an expression of another kind; has no value
  };
  Op op = Op::kNumber;
  int64_t number = 0;
  std::string text;
  std::vector<SizeExpression> operands;
  bool operator==(const SizeExpression&) const = default;

  // Returns the value of the expression for these values of the symbols; the value of a condition is 0 or 1. Returns
  // nullopt if a symbol has no value, the expression contains kText, a divisor is 0 or the result does not fit into
  // int64.
  std::optional<int64_t> Evaluate(const std::map<std::string, int64_t, std::less<>>& symbols) const;
  // Adds the symbols in the expression to `names`.
  void AddSymbols(std::set<std::string>& names) const;
};

// One value of the graph: a result of an operator, or an input.
struct ProgramValue {
  enum class Kind : uint8_t { kTensor, kInt, kFloat, kBool };
  std::string name;
  Kind kind = Kind::kTensor;
  int dtype = 0;               // of a tensor: number of the scalar type in the schema of torch.export
  std::vector<int64_t> sizes;  // of a tensor, in the traced example
  std::vector<bool> varies;    // parallel to sizes: whether the size is symbolic
  // Parallel to sizes: the expression of a size that depends on data, as torch.export writes it ("Symbol('u0',
  // integer=True)"); such a size counts as 0. Empty if no size depends on data.
  std::vector<std::string> of_data;
};

// One argument of a node.
struct ProgramArgument {
  enum class Kind : uint8_t {
    kNone,
    kValue,         // `value`
    kInt,           // `integer`
    kFloat,         // `number`; may be infinite or NaN
    kBool,          // `integer` 0 or 1
    kString,        // `text`
    kScalarType,    // `integer`: number in the schema of torch.export
    kLayout,        // as kScalarType
    kMemoryFormat,  // as kScalarType
    kDevice,        // device of the export: `text` "cpu"
    kList,          // `elements`
  };
  Kind kind = Kind::kNone;
  // For kList: whether the elements are tensors (an element of kind kNone is an absent tensor), and whether they are
  // floats. If both flags are false, the elements are ints, bools or strings, and an empty list may also be a list of
  // tensors. An element of a list of numbers may be of kind kValue.
  bool of_tensors = false;
  bool of_floats = false;
  uint32_t value = 0;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<ProgramArgument> elements;
};

// One call of a module: the path of the module, and the number of the call among the calls of this module, from 0.
struct ModuleCall {
  std::string path;
  std::string kind;  // the class without its Python module: "LlamaDecoderLayer"
  int32_t occurrence = 0;
  bool operator==(const ModuleCall&) const = default;
};

struct ProgramNode {
  enum class Kind : uint8_t {
    kOperator,       // an operator of the dispatcher: `target` "aten::linear", `overload` "" or "Tensor"
    kArithmetic,     // a Python operation on numbers: `target` "add", "floordiv", "sym_max"
    kEnterGradMode,  // sets the gradient mode until kLeave; inputs: on or off
    kEnterAutocast,  // sets autocast until kLeave; inputs: device type, dtype or none, on or off, cache casts or not
                     // (none: as outside)
    kLeave,
    kBranch,  // runs the nodes up to kElse if its input is true, else those between kElse and kJoin; the input: a
              // number, or a tensor of one element
    kElse,
    kJoin,  // inputs: the results of the first branch, then those of the second; outputs: those of the branch that ran
  };
  static constexpr uint32_t kNoValue = UINT32_MAX;
  Kind kind = Kind::kOperator;
  std::string name;
  std::string target;
  std::string overload;
  std::vector<std::pair<std::string, ProgramArgument>> inputs;  // by argument name of the operator's schema
  std::vector<uint32_t> outputs;                                // indices of values; kNoValue: a result without a value
  bool outputs_in_list = false;                                 // the operator returns one list of all outputs
  int32_t stack = -1;  // index into ExportedProgram::stacks; -1: a node that belongs to no module call
  std::string place;   // line of the model's source, "modeling_llama.py:245"; "": not recorded
};

// A flat list of nodes. The nodes of nested graphs are in this list: if a higher-order operator only sets a mode,
// between kEnterGradMode or kEnterAutocast and kLeave; of torch.cond between kBranch, kElse and kJoin. These pairs and
// triples nest. A value of a branch is used only in the branch and by its kJoin. The module calls of a node inside a
// branch begin with the calls of the branch's kBranch, if the node has a stack.
struct ProgramGraph {
  std::vector<ProgramNode> nodes;
  std::vector<ProgramArgument> outputs;
};

// The initialization of a parameter in a model that is trained from scratch.
struct ProgramInitial {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform, kValues };
  Kind kind = Kind::kConstant;
  // kConstant: the number; kNormal: mean and standard deviation; kUniform: the lowest and the highest number; kValues:
  // the values of the full tensor, row-major.
  std::vector<double> numbers;
};

// A tensor that the graph receives besides its inputs: a parameter, a buffer or a constant.
struct ProgramTensor {
  enum class Kind : uint8_t { kParameter, kBuffer, kConstant };
  Kind kind = Kind::kParameter;
  bool persistent = true;  // of a buffer: checkpoints contain it
  bool requires_grad = false;
  std::string name;                      // "model.layers.0.mlp.up_proj.weight"; of a constant: the exporter's name
  int64_t value = -1;                    // index of the value; -1: the graph does not use it
  int dtype = 0;                         // number in the schema of torch.export
  std::vector<int64_t> shape;            // full
  std::vector<SizeExpression> symbolic;  // the shape with symbols; empty: no dim varies
  // Entry of the archive with the values, "data/constants/tensor_0"; "": the values are not in the archive but in a
  // checkpoint.
  std::string entry;
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;  // elements
  int entry_dtype = 0;         // of the values in the archive; differs from `dtype` after InDType
  int32_t tied_to = -1;        // index of the first of the tied tensors; -1: not tied, or the first itself
  // The first recipe whose tensors all exist is used; without such a recipe, the checkpoint tensor of the same name.
  std::vector<WeightRecipe> recipes;
  std::optional<ProgramInitial> initial;
  bool is_zero = false;  // a constant of one element whose value in the archive is zero
};

struct ExportedModule {
  std::string path;
  std::string kind;  // class: "LlamaDecoderLayer"
};

// The tensors that one call of a module takes and returns: their values and positions. A tensor inside a tuple or a
// dict has the position of the argument that contains it; the position of a result is its index in the returned tuple.
struct RecordedCall {
  struct Place {
    uint32_t position = 0;
    uint32_t value = 0;
  };
  std::string module;
  int32_t occurrence = 0;
  std::vector<std::string> argument_names;
  std::vector<Place> arguments;
  std::vector<Place> results;
};

// The source of the value of a symbol.
struct SizeSymbol {
  std::string input;    // name of an input, or ""
  std::string tensor;   // name of a parameter, or ""; both "": the symbol depends on data
  int64_t dim = 0;      // of the input or parameter
  int64_t example = 0;  // value in the traced example
};

struct SizeGuard {
  SizeExpression condition;
  std::string text;          // the condition, for messages
  std::string place;         // line of the model's source, or the name of the node; may be empty
  bool of_operator = false;  // `place` is a node: the condition comes from the number of its results
};

struct ProgramInput {
  std::string name;
  std::string kind;    // "ids", "labels", "mask", "positions", "pixels", ...
  int64_t value = -1;  // index of the value; -1: the graph does not use it
  std::string dtype;   // "int64"; of a number: "int", "float" or "bool"
  std::vector<SizeExpression> shape;
};

struct ProgramOutput {
  std::string name;  // "logits"
  std::vector<SizeExpression> shape;
};

// A behaviour of the model that its program does not have.
struct NotKept {
  enum class Kind : uint8_t {
    kBackward,   // the backward of an autograd function: the program differentiates the operators in its forward
    kBuffer,     // a buffer to which forward assigns a new tensor: the program does not update it
    kAttribute,  // an attribute that forward changes: the program has its first value as a constant
  };
  Kind kind = Kind::kBackward;
  std::string name;
};

// How the exporter made an archive: for people who debug a plan or an archive. The engine does not depend on it.
struct ProgramOrigin {
  std::string torch;  // versions; "": not recorded, of transformers also: not a model of transformers
  std::string transformers;
  std::string defined_in;  // Python module of the model's class
  std::string model_type;  // of transformers; or ""
  std::string attention;   // implementations of transformers ("sdpa", "grouped_mm"); or ""
  std::string experts;
  std::string weight_names;  // whose tensor names the recipes use: "checkpoint", "config" or "module"; "": not recorded
  std::map<std::string, std::vector<int64_t>> example;  // by input: the shape that was traced
  JsonValue fixed;                                      // object: arguments that are constants of the program
};

// The sizes for which the guards hold, if all other symbols have the values of the example.
struct ValidSizes {
  std::vector<std::pair<int64_t, int64_t>> ranges;  // inclusive
  int64_t tried = 0;                                // the largest size that the exporter tried; 0: not recorded
};

struct ExportedProgram {
  std::string file;
  std::string torch_version;
  std::string model_class;
  ProgramGraph graph;
  std::vector<ProgramValue> values;
  std::vector<std::vector<ModuleCall>> stacks;  // distinct stacks, outermost call first, without the root
  std::vector<ProgramTensor> tensors;           // parameters and buffers in the order of the modules, then constants
  std::vector<ProgramInput> inputs;             // in the order of the arguments
  std::vector<ProgramOutput> outputs;           // parallel to graph.outputs
  std::vector<ExportedModule> modules;          // parents before children; the root, "", is the first
  std::vector<RecordedCall> calls;              // in the order in which they began
  std::map<std::string, SizeSymbol, std::less<>> symbols;
  std::vector<SizeGuard> guards;                         // all must hold
  std::map<std::string, ValidSizes, std::less<>> valid;  // by symbol of an input
  std::vector<NotKept> not_kept;
  std::vector<std::string> notes;  // of the exporter: dims that are not symbolic and why, what is not supported
  bool trains = true;              // exported in training mode
  bool evaluates = true;           // the graph is also that of evaluation mode, with its dropout and statistics off
  bool autocast_regions = false;   // the graph switches autocast off where the model does
  std::string dtype;               // of the model's computation, "bfloat16"; "": not recorded
  ProgramOrigin origin;
  std::optional<JsonValue> config;  // config.json of the model
  // For a directory of archives. `lengths`: the ranges of sequence lengths that the index lists for this archive.
  // `others`: the other archives of the index. All archives have the same modules, parameters and buffers, but
  // different graphs.
  std::vector<std::pair<int64_t, int64_t>> lengths;
  std::vector<std::shared_ptr<const ExportedProgram>> others;
};

// Returns the number that the schema of torch.export has for torch's name of a dtype ("float32"), or nullopt. complex32
// and complex128 have a number too: values may have these dtypes, parameters may not.
std::optional<int> SerializedDType(std::string_view name);

// Parses the texts of models/model.json and extra/moonshard.json; `file` is the name of the program in messages. Errors
// (kBadProgram, with the entry and the place in it): invalid JSON, another major version of the schema, another format
// of the record, a field that is missing or has the wrong type, a name that is used before it is defined or is defined
// twice, a size that is negative or beyond int64, more nodes than kMaxProgramNodes. ParseProgram reads every key that
// the exporter writes into the record, and ignores other keys: those of newer exporters, and of older ones.
Result<ExportedProgram> ParseProgram(std::string_view model, std::string_view record, const std::string& file);

inline constexpr size_t kMaxProgramNodes = 4'000'000;

// Returns the program as if it was exported in another dtype ("float32", "bfloat16", "float16" or "float64"). InDType
// changes parameters, buffers, constants, inputs, casts to the model's dtype, and numbers that are the largest or
// smallest of the dtype (in masks). Casts to float32 that the model has in every dtype stay. In an export in float32,
// these casts cannot be distinguished from casts to the model's dtype. Errors (kNotSupported): an export in float32, an
// export without a recorded dtype, a `dtype` that is not listed above.
Result<ExportedProgram> InDType(const ExportedProgram& program, const std::string& dtype);

// Returns a batch size and a sequence length that the program accepts, by the shapes and ranges of all its archives.
// Returns `wanted` if the program accepts it. Otherwise the batch is that of the export, and the length is the longest
// accepted length below the wanted one, or else the shortest accepted length.
std::pair<int64_t, int64_t> FittingTokens(const ExportedProgram& program, std::pair<int64_t, int64_t> wanted);

// Returns the inputs of all archives of the program: the inputs of the first archive in its order, then the other
// inputs. ProgramInput::value is -1 for an input that a call may leave out; `shape` has the symbols of the first
// archive that has the input.
std::vector<ProgramInput> InputsOf(const ExportedProgram& program);

// Returns whether the archive contains the values of all parameters.
bool HasWeights(const ExportedProgram& program);

// Returns the differences between training the program and training its model (NotKept), as warnings (kNotSupported).
Diagnostics NotKeptByTraining(const ExportedProgram& program);

// Returns whether a program is a causal language model: the graph uses one input of ids, at most one input each of
// mask, positions and labels (of the shape of the ids), and no other input, and the program has an output "logits" of
// three dims.
bool IsCausalLm(const ExportedProgram& program);

// Returns the exporter's notes of all archives of the program, each note once, in the order of the archives.
std::vector<std::string> NotesOf(const ExportedProgram& program);

// Returns how each archive of the program was made, in the order of the archives: [{"file", "format", "torch", "class",
// "mode", "weights", "dtype", "transformers", "defined_in", "model_type", "attention", "experts", "weight_names",
// "example", "fixed", "valid", "tried"}], without the keys that the record does not have. "mode" is "training and
// evaluation", "training" or "evaluation"; "weights" is whether the archive has the values of the parameters; "valid"
// is {"input_ids dim 1": [[1, 64]]}; "tried" is the largest size that the exporter tried for it.
JsonValue OriginsOf(const ExportedProgram& program);

// Returns the recipes of the tensors that have recipes, by name of the tensor.
WeightRecipes RecipesOf(const ExportedProgram& program);

// Returns the module tree of the program, as the tree of a live model: every module with its parameters and buffers
// (persistent or not), and the ties.
ModuleTree ProgramTree(const ExportedProgram& program);

}  // namespace moonshard

// ExportedProgram: a model that torch.export wrote (.pt2) as plain data: the graph of operators, the parameters and
// constants it uses, and the module whose call each operator belongs to. Nothing is computed and no tensor is made, so
// that `explain`, `check`, `suggest` and the REPL take a program like a model directory.
//
//   model.pt2 (a zip)   models/model.json        graph, signature, guards: torch's schema, major version 8
//                       data/weights/...         values of parameters, absent where the program was exported without
//                       data/constants/...       values of constants and of buffers that no checkpoint holds
//                       data/sample_inputs/...   an example's inputs, for Python's torch.export.load; not read here
//                       extra/moonshard.json     what the exporter adds: format 1 of
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

// A number that may depend on sizes that vary between calls, or a condition on such numbers.
struct SizeExpression {
  enum class Op : uint8_t {
    kNumber,  // `number`
    kSymbol,  // `text`
    kAdd,
    kMul,
    kMin,
    kMax,
    kFloorDiv,  // as Python: towards minus infinity
    kMod,       // as Python: the divisor's sign
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
    kSelect,  // condition, then, else
    kText,    // `text`: outside this vocabulary, without a value
  };
  Op op = Op::kNumber;
  int64_t number = 0;
  std::string text;
  std::vector<SizeExpression> operands;
  bool operator==(const SizeExpression&) const = default;

  // Its value for the values of symbols; a condition is 0 or 1. nullopt if a symbol or the expression has no value, a
  // divisor is 0 or the result is not an int64.
  std::optional<int64_t> Evaluate(const std::map<std::string, int64_t, std::less<>>& symbols) const;
  // The symbols in it, added to `names`.
  void AddSymbols(std::set<std::string>& names) const;
};

// One value of the graph: a result of an operator, or an input.
struct ProgramValue {
  enum class Kind : uint8_t { kTensor, kInt, kFloat, kBool };
  std::string name;
  Kind kind = Kind::kTensor;
  int dtype = 0;               // torch's serialized number of a scalar type, of a tensor
  std::vector<int64_t> sizes;  // of a tensor, in the example that was traced
  std::vector<bool> varies;    // parallel: whether the size is a symbol's
};

// One argument of a node.
struct ProgramArgument {
  enum class Kind : uint8_t {
    kNone,
    kValue,         // `value`
    kInt,           // `integer`
    kFloat,         // `number`; infinities and NaN as they are
    kBool,          // `integer` 0 or 1
    kString,        // `text`
    kScalarType,    // `integer`: torch's serialized number
    kLayout,        // as kScalarType
    kMemoryFormat,  // as kScalarType
    kDevice,        // where the model was exported; `text` "cpu"
    kList,          // `elements`
  };
  Kind kind = Kind::kNone;
  // Of a list: of tensors (which may be absent), numbers (which may be values), texts; an empty list of ints may stand
  // for one of tensors.
  bool of_tensors = false;
  bool of_floats = false;
  uint32_t value = 0;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  std::vector<ProgramArgument> elements;
};

// One call of a module: the path of the module and which of its calls, from 0.
struct ModuleCall {
  std::string path;
  std::string kind;  // the last part of the class: "LlamaDecoderLayer"
  int32_t occurrence = 0;
  bool operator==(const ModuleCall&) const = default;
};

struct ProgramNode {
  enum class Kind : uint8_t {
    kOperator,       // of the dispatcher; `target` "aten::linear", `overload` "" or "Tensor"
    kArithmetic,     // of Python, on numbers; `target` "add", "floordiv", "sym_max"
    kEnterGradMode,  // until kLeave; inputs: on or off
    kEnterAutocast,  // until kLeave; inputs: device type, dtype or none, on or off, whether casts are cached
    kLeave,
  };
  static constexpr uint32_t kNoValue = UINT32_MAX;
  Kind kind = Kind::kOperator;
  std::string name;
  std::string target;
  std::string overload;
  std::vector<std::pair<std::string, ProgramArgument>> inputs;  // by the names of the operator's schema
  std::vector<uint32_t> outputs;                                // values; kNoValue: a result that is no value
  bool outputs_in_list = false;                                 // the operator returns one list that holds all of them
  int32_t stack = -1;  // index into ExportedProgram::stacks; -1: the exporter's own node, of no module
  std::string place;   // of the model's source, "modeling_llama.py:245"; "" where the archive does not have it
};

// Flat: graphs inside of operators that only switch a mode stand in place, between kEnterGradMode or kEnterAutocast and
// kLeave.
struct ProgramGraph {
  std::vector<ProgramNode> nodes;
  std::vector<ProgramArgument> outputs;
};

// What a parameter starts as where the model is trained from scratch.
struct ProgramInitial {
  enum class Kind : uint8_t { kConstant, kNormal, kUniform, kValues };
  Kind kind = Kind::kConstant;
  // The number; mean and standard deviation; the lowest and the highest number; the values of the full tensor,
  // row-major.
  std::vector<double> numbers;
};

// A tensor that the graph is given besides its inputs.
struct ProgramTensor {
  enum class Kind : uint8_t { kParameter, kBuffer, kConstant };
  Kind kind = Kind::kParameter;
  bool persistent = true;  // of a buffer: checkpoints hold it
  bool requires_grad = false;
  std::string name;                      // "model.layers.0.mlp.up_proj.weight"; of a constant a name of the exporter
  int64_t value = -1;                    // of the graph; -1: the graph does not use it
  int dtype = 0;                         // serialized
  std::vector<int64_t> shape;            // full
  std::vector<SizeExpression> symbolic;  // the shape with symbols; empty: no dim varies
  // Where its bytes are in the archive, "data/constants/tensor_0"; "": nowhere, a checkpoint has them.
  std::string entry;
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;         // elements
  int entry_dtype = 0;                // serialized, of the bytes there: `dtype`, but for a program in another dtype
  int32_t tied_to = -1;               // index of the first tensor of its group of ties; -1: not tied, or the first
  std::vector<WeightRecipe> recipes;  // the first one whose tensors exist holds; none: the tensor of its own name
  std::optional<ProgramInitial> initial;
};

struct ExportedModule {
  std::string path;
  std::string kind;  // class: "LlamaDecoderLayer"
};

// What one call of a module was given and made: the places of values in its arguments and results. A tensor inside a
// tuple or a dict has the position of the argument that holds it; results are numbered by their place in the tuple that
// is returned.
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

// Where the value of a symbol is found.
struct SizeSymbol {
  std::string input;   // name of an input, or
  std::string tensor;  // of a parameter; both "": it depends on data
  int64_t dim = 0;
  int64_t example = 0;
};

struct SizeGuard {
  SizeExpression condition;
  std::string text;   // for people
  std::string place;  // of the model's source; may be empty
};

struct ProgramInput {
  std::string name;
  std::string kind;    // "ids", "labels", "mask", "positions", "pixels", ...
  int64_t value = -1;  // of the graph; -1: the graph does not use it
  std::string dtype;   // "int64"; of a number "int", "float", "bool"
  std::vector<SizeExpression> shape;
};

struct ProgramOutput {
  std::string name;  // "logits"
  std::vector<SizeExpression> shape;
};

// Something that the model does and its program does not.
struct NotKept {
  enum class Kind : uint8_t {
    kBackward,   // an autograd function's own backward: gradients are those of the operators in its forward
    kBuffer,     // a buffer that forward assigns anew: the program leaves it as it is
    kAttribute,  // an attribute that forward changes: the program has its value in the first call
  };
  Kind kind = Kind::kBackward;
  std::string name;
};

struct ExportedProgram {
  std::string file;
  std::string torch_version;
  std::string model_class;
  ProgramGraph graph;
  std::vector<ProgramValue> values;
  std::vector<std::vector<ModuleCall>> stacks;  // distinct ones, outermost first; the root is not in them
  std::vector<ProgramTensor> tensors;           // parameters and buffers in the order of the modules, then constants
  std::vector<ProgramInput> inputs;             // in the order in which they are given
  std::vector<ProgramOutput> outputs;           // parallel to graph.outputs
  std::vector<ExportedModule> modules;          // parents before children; the root, "", is the first
  std::vector<RecordedCall> calls;              // in the order in which they began
  std::map<std::string, SizeSymbol, std::less<>> symbols;
  std::vector<SizeGuard> guards;                                          // all must hold
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>> valid;  // of symbols: ranges that hold, for messages
  std::vector<NotKept> not_kept;
  bool trains = true;               // exported in training mode
  bool autocast_regions = false;    // where the model switches autocast off, the graph does too
  std::string dtype;                // of the model's computation, "bfloat16"; "": not recorded
  std::optional<JsonValue> config;  // config.json of the model
  // Of a directory of archives: the lengths that its index has for this one, and the archives of the same model behind
  // it. They have its modules, parameters and buffers, and other graphs.
  std::vector<std::pair<int64_t, int64_t>> lengths;
  std::vector<std::shared_ptr<const ExportedProgram>> others;
};

// The number that the schema has for torch's name of a dtype ("float32"), among them complex32 and complex128, which
// values may have and parameters may not.
std::optional<int> SerializedDType(std::string_view name);

// Reads the text of models/model.json and of extra/moonshard.json, in a program called `file`. Errors (kBadProgram,
// with the entry and the place in it): JSON that is not one, another major version of the schema or another format of
// the record, fields that are missing or of another kind, names that are not defined before their use or defined twice,
// sizes that are negative or beyond int64, more nodes than kMaxProgramNodes.
Result<ExportedProgram> ParseProgram(std::string_view model, std::string_view record, const std::string& file);

inline constexpr size_t kMaxProgramNodes = 4'000'000;

// The program as if it was exported in another dtype ("float32", "bfloat16", "float16" or "float64"): parameters,
// constants and casts to the model's dtype. Casts to float32 that the model has whatever its dtype stay. In an export
// in float32 these two cannot be told apart. Errors (kNotSupported): an export in float32, or without a recorded dtype.
Result<ExportedProgram> InDType(const ExportedProgram& program, const std::string& dtype);

// Batch and length of tokens that the program takes, by the shapes and ranges of all its archives: `wanted` if it fits;
// else the batch that it was exported for, and of its lengths the longest shorter one, or the shortest.
std::pair<int64_t, int64_t> FittingTokens(const ExportedProgram& program, std::pair<int64_t, int64_t> wanted);

// Whether the archive holds the values of all parameters.
bool HasWeights(const ExportedProgram& program);

// What training a program does otherwise than training its model, as warnings (kNotSupported).
Diagnostics NotKeptByTraining(const ExportedProgram& program);

// How its tensors are made of a checkpoint's, of those that have recipes.
WeightRecipes RecipesOf(const ExportedProgram& program);

// The module tree of the program: every module, its parameters and persistent and other buffers, with ties; as a live
// model's is read.
ModuleTree ProgramTree(const ExportedProgram& program);

}  // namespace moonshard

// DataFlow: the data flow between the modules of a model: an edge from each result of a module call to the arguments of
// the calls that receive the result, with the operators between the calls. The data flow is read from the graph of an
// exported program without running it (engine/graph/data_flow_of.h); a model that is written in C++ has no DataFlow.
//
//   model.layers.0.self_attn.q_proj:0 -> model.layers.0.self_attn.o_proj:0   reshape, other
//   model.layers.0.self_attn.o_proj:0 -> model.layers.0.post_attention_layernorm:0   residual
//
// An edge goes from the innermost call that outputs a value to every call that receives this value or a value that
// operators between the calls compute from it. For a residual sum, only the operands of the last addition have edges,
// not those of all earlier layers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonshard {

struct FlowEdge {
  // The operators between the calls, a set of these flags:
  static constexpr uint8_t kElementwise = 1;  // elementwise operators
  static constexpr uint8_t kResidual = 2;     // a sum of two results of modules
  static constexpr uint8_t kReshape = 4;      // views, transposes, slices, splits, concatenations
  static constexpr uint8_t kOther = 8;        // any other operator: attention, matrix products, row lookups
  static constexpr int32_t kInput = -1;

  int32_t from = kInput;  // index into DataFlow::calls; kInput: an input of the model
  uint32_t output = 0;    // position among the results; of a model input: its index
  int32_t to = 0;         // index into DataFlow::calls; kInput: an output of the model
  uint32_t input = 0;     // position among the arguments; of a model output: its index
  uint8_t between = 0;    // flags of the operators between the calls; 0: no operator
  bool operator==(const FlowEdge&) const = default;
};

struct FlowCall {
  std::string module;  // path
  int32_t occurrence = 0;
  int32_t parent = -1;  // the enclosing call; -1: the root
};

struct DataFlow {
  std::vector<FlowCall> calls;      // in the order in which they begin; the root is not among them
  std::vector<std::string> inputs;  // of the model
  std::vector<std::string> outputs;
  std::vector<FlowEdge> edges;  // sorted by `to`, then `input`, then `from`

  // Return the edges into, or out of, the calls of a module and its descendants, without the edges between these calls.
  std::vector<FlowEdge> Into(const std::string& module) const;
  std::vector<FlowEdge> OutOf(const std::string& module) const;
  // Return the two ends of an edge as text: "layers.0.mlp.down_proj:0"; "norm@1:0" for the second call of a module;
  // "input ids" for an input of the model.
  std::string FromText(const FlowEdge& edge) const;
  std::string ToText(const FlowEdge& edge) const;
  // Returns all edges, one per line.
  std::string ToText() const;
};

// "nothing", "elementwise", "residual, reshape".
std::string BetweenText(uint8_t between);

}  // namespace moonshard

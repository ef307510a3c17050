// DataFlow: which module of a model feeds which, without running it: an edge from each result of a call to the
// arguments of the calls that take it, with the operators between them. Read from the graph of an exported program
// (engine/graph/data_flow_of.h); it is not known for a model that is written in C++.
//
//   model.layers.0.self_attn.q_proj:0 -> model.layers.0.self_attn.o_proj:0   reshape, other
//   model.layers.0.self_attn.o_proj:0 -> model.layers.0.post_attention_layernorm:0   residual
//
// An edge goes from the innermost call that makes a value to every call that takes it, or takes a value that operators
// between modules computed from it. For a residual sum only the operands of the last addition have edges, not those of
// all layers before.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moonshard {

struct FlowEdge {
  // The operators between the calls, a set of:
  static constexpr uint8_t kElementwise = 1;  // operators that compute each element by itself
  static constexpr uint8_t kResidual = 2;     // a sum of two results of modules
  static constexpr uint8_t kReshape = 4;      // views, transpositions, parts, joins
  static constexpr uint8_t kOther = 8;        // any other operator: attention, products, a choice of rows
  static constexpr int32_t kInput = -1;

  int32_t from = kInput;  // index into DataFlow::calls; kInput: an input of the model
  uint32_t output = 0;    // place among the results; of an input its index
  int32_t to = 0;         // index into DataFlow::calls; kInput: an output of the model
  uint32_t input = 0;     // position among the arguments; of an output its index
  uint8_t between = 0;    // 0: nothing
  bool operator==(const FlowEdge&) const = default;
};

struct FlowCall {
  std::string module;  // path
  int32_t occurrence = 0;
  int32_t parent = -1;  // the call around it; -1: the root's
};

struct DataFlow {
  std::vector<FlowCall> calls;      // in the order in which they begin; the root is not among them
  std::vector<std::string> inputs;  // of the model
  std::vector<std::string> outputs;
  std::vector<FlowEdge> edges;  // by `to`, then `input`, then `from`

  // The edges into, or out of, the calls of a module and its descendants, without those inside of it.
  std::vector<FlowEdge> Into(const std::string& module) const;
  std::vector<FlowEdge> OutOf(const std::string& module) const;
  // "layers.0.mlp.down_proj:0", of the second call "norm@1:0"; "input ids".
  std::string FromText(const FlowEdge& edge) const;
  std::string ToText(const FlowEdge& edge) const;
  // One edge a line.
  std::string ToText() const;
};

// "nothing", "elementwise", "residual, reshape".
std::string BetweenText(uint8_t between);

}  // namespace moonshard

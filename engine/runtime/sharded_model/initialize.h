// Initialize: first values for a sharded model, the same numbers that one rank would give the full model, whatever the
// mesh and the plan.
// Stage before: applied_plan.h, whose parameters may have been made under DeferInit. Instead of: load.h.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "engine/io/exported_program/exported_program.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// What a parameter starts as: independent draws from a distribution, one number everywhere, or given values.
struct InitialValue {
  enum class Kind : uint8_t { kNormal, kUniform, kConstant, kValues };
  Kind kind = Kind::kNormal;
  // Mean and standard deviation; the lowest and the highest number; the number; the full tensor's values, row-major.
  std::vector<double> numbers;

  static InitialValue Normal(double deviation, double mean = 0) { return {Kind::kNormal, {mean, deviation}}; }
  static InitialValue Uniform(double lowest, double highest) { return {Kind::kUniform, {lowest, highest}}; }
  static InitialValue Constant(double value) { return {Kind::kConstant, {value}}; }
  static InitialValue Values(std::vector<double> values) { return {Kind::kValues, std::move(values)}; }
};

using InitialRule = std::function<InitialValue(const LiveParameter& parameter, const torch::nn::Module& module)>;

// What decoders start as, and what transformers' _init_weights does with `initializer_range`: a tensor of two dims or
// more is normal, a bias 0, and the scale of a norm 1, or 0 where the norm adds 1 by itself.
InitialRule DecoderInit(double deviation = 0.02);

// What the exporter recorded of the model's own initialisation (ProgramTensor::initial); `otherwise` where it recorded
// nothing.
InitialRule RecordedInit(const ExportedProgram& program, InitialRule otherwise = DecoderInit());

// Fills every parameter; buffers stay. Each parameter's numbers come from a generator of its own, seeded by `seed` and
// the parameter's path, which makes them for the full tensor in float32; this rank's shard is sliced out of it and
// converted. So ranks do not communicate, no order matters, and the memory needed is that of the largest full tensor.
void Initialize(AppliedPlan& model, uint64_t seed, const InitialRule& rule = DecoderInit());

}  // namespace moonshard

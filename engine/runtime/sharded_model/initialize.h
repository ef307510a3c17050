// Initialize: initial values for a sharded model, the same numbers on every mesh and under every plan as on one rank.
// Stage before: applied_plan.h, whose parameters may have been made under DeferInit. Alternative: load.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "engine/io/exported_program/exported_program.h"
#include "engine/runtime/apply/applied_plan.h"

namespace moonshard {

// The initial value of a parameter: independent samples of a distribution, one number for all elements, or given
// values.
struct InitialValue {
  enum class Kind : uint8_t { kNormal, kUniform, kConstant, kValues };
  Kind kind = Kind::kNormal;
  // kNormal: mean and standard deviation. kUniform: the lowest and the highest number. kConstant: the number. kValues:
  // the values of the full tensor, row-major.
  std::vector<double> numbers;

  static InitialValue Normal(double deviation, double mean = 0) { return {Kind::kNormal, {mean, deviation}}; }
  static InitialValue Uniform(double lowest, double highest) { return {Kind::kUniform, {lowest, highest}}; }
  static InitialValue Constant(double value) { return {Kind::kConstant, {value}}; }
  static InitialValue Values(std::vector<double> values) { return {Kind::kValues, std::move(values)}; }
};

using InitialRule = std::function<InitialValue(const LiveParameter& parameter, const torch::nn::Module& module)>;

// The initial values of decoders, as transformers' _init_weights with `initializer_range`: a tensor of two dims or more
// is normal, a bias is 0, and the scale of a norm is 1, or 0 if the norm adds 1 to it.
InitialRule DecoderInit(double deviation = 0.02);

// Returns the rule with the initial values that the exporter recorded for the model (ProgramTensor::initial).
// Parameters without a recorded value get their value from `otherwise`.
InitialRule RecordedInit(const ExportedProgram& program, InitialRule otherwise = DecoderInit());

// Returns the initial value of a persistent buffer; nullopt: the buffer is not changed.
using InitialBufferRule = std::function<std::optional<InitialValue>(const LiveParameter& buffer)>;

// Returns the rule with the initial values of buffers that the exporter recorded for the model.
InitialBufferRule RecordedBufferInit(const ExportedProgram& program);

// Returns the rule for buffers that a checkpoint does not have (NameRules::buffers): the recorded values, except of
// buffers that have values in the archive and of buffers that begin with random numbers.
InitialBufferRule MissingBufferInit(const ExportedProgram& program);

// Fills every parameter, and the buffers for which `buffer_rule` returns a value. Each tensor has its own generator,
// seeded by `seed` and the tensor's path, which generates the numbers of the full tensor in float32. This rank's shard
// is sliced out of the full tensor and converted to the tensor's dtype. Therefore ranks do not communicate, and the
// order of tensors has no effect. Needs memory for the largest full tensor.
void Initialize(AppliedPlan& model, uint64_t seed, const InitialRule& rule = DecoderInit(),
                const InitialBufferRule& buffer_rule = {});

// Fills one parameter or buffer of the model as Initialize does.
void SetInitialValue(const AppliedPlan& model, const LiveParameter& parameter, const InitialValue& value,
                     uint64_t seed);

}  // namespace moonshard

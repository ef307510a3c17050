// RandomStreams: which random numbers a rank of tp draws. Values that every rank holds (replicate, and terms of a sum)
// must see the same numbers on every rank, shards different ones: dropout after a rowwise layer drops the same elements
// everywhere, dropout on a rank's own heads must not repeat that of the next rank's.
//
// Operators draw from the default generator of the process. So that is switched: common numbers are those of the generator
// as the host seeded it (alike on the ranks of tp); a rank's own come from a second state, which takes the generator's
// place while the model works on shards. It is made anew in each outermost call that needs it, from the number that the
// common generator would draw next, which stays undrawn, and this rank's coordinate. Between calls the generator is the
// common one alone, so a saved run needs nothing else, and a run may be resumed on another mesh.
//
// Where nothing is drawn on shards, the common generator is after the call as it is on one rank: what a program draws
// between steps is what it draws there. Where something is, as by dropout on a rank's own heads, the common generator has
// advanced by one number more at the end of the call, so that the next call's own numbers are others; one rank would have
// advanced by as many as it draws for the full tensor, which no rank of tp knows. Source of the idea: Megatron-LM's tracker of two states
// (Narayanan et al. 2021); PyTorch's OffsetBasedRNGTracker does it by offsets for DTensor operators.
//
// Stage before: none. Stage after: apply, which knows from the plan what a module's values are; recompute, which runs
// again under the state of the first run.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace moonshard {

enum class RandomStream : uint8_t { kCommon, kOwn };

class RandomStreams {
 public:
  // `coordinate`: of this rank among those that share the common numbers. `device`: whose generator is switched, besides
  // the CPU's.
  RandomStreams(int64_t coordinate, c10::Device device) : coordinate_(coordinate), device_(device) {}

  // An outermost call begins, and ends, by an exception too: numbers are common again.
  void Begin();
  void End();

  // What is drawn from now on. Nothing outside of a call. Two to three hundred nanoseconds where it is another stream.
  void Use(RandomStream stream);
  RandomStream now() const { return state_.now; }

  // A generator's state that another one has taken the place of.
  struct Idle {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
    at::Tensor of_device;  // undefined on a CPU
  };
  // All but what is in the generators.
  struct State {
    bool open = false;  // in a call
    bool made = false;  // the own stream, in this call
    bool drew = false;  // from the own stream, in this call
    RandomStream now = RandomStream::kCommon;
    Idle idle;  // of the stream that is not `now`, where it was made
  };
  const State& state() const { return state_; }
  // With the generators as they were then: the same numbers follow.
  void Restore(const State& state) { state_ = state; }

 private:
  Idle Take() const;
  void Put(const Idle& idle) const;
  void MakeOwn();
  // Whether the generators, which hold the own stream, are not as MakeOwn left them.
  bool HasDrawn() const;

  int64_t coordinate_;
  c10::Device device_;
  State state_;
};

}  // namespace moonshard

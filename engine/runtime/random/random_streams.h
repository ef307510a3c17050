// RandomStreams: the random numbers that a rank of tp draws. Replicated and partial tensors need the same numbers on
// every rank, shards need different ones: dropout after a rowwise layer must drop the same elements everywhere, dropout
// on a rank's own heads must not repeat that of the next rank's heads.
//
// Operators draw from the default generator of the process, so its state is switched. The common stream is the
// generator as the host seeded it (the same on the ranks of tp). The rank's own stream is a second state that replaces
// it while the model computes on shards. It is seeded in each outermost call that needs it, from this rank's coordinate
// and the next number of the common stream, which is not consumed. Between calls the generator has only the common
// stream, so a saved run needs no other state and can be resumed on another mesh.
//
// If nothing is drawn on shards, the common stream has the same state after a call as on one rank, and a program draws
// the same numbers between steps. Otherwise (dropout on a rank's own heads) the common stream advances by one more
// number at the end of the call, so that the next call seeds a different own stream; one rank would advance by the
// numbers of the full tensor, which no rank of tp knows. Source of the technique: Megatron-LM's tracker of two states
// (Narayanan et al. 2021); PyTorch's OffsetBasedRNGTracker uses offsets for DTensor operators instead.
//
// Stage before: none. Stage after: apply, which takes a module's stream from the plan; recompute, which repeats a run
// under the state of the first.
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
  // `coordinate`: of this rank among those that share the common stream. `device`: its generator is switched, and the
  // CPU's.
  RandomStreams(int64_t coordinate, c10::Device device) : coordinate_(coordinate), device_(device) {}

  // An outermost call begins; it ends, also by an exception. Both select the common stream.
  void Begin();
  void End();

  // Selects the stream to draw from. Nothing outside of a call. Two to three hundred nanoseconds when the stream
  // changes.
  void Use(RandomStream stream);
  RandomStream now() const { return state_.now; }

  // The state of a stream that is not in the generators now.
  struct Idle {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
    at::Tensor of_device;  // undefined on a CPU
  };
  // Everything but the generators' contents.
  struct State {
    bool open = false;  // in a call
    bool made = false;  // whether this call has seeded the own stream
    bool drew = false;  // whether something was drawn from it
    RandomStream now = RandomStream::kCommon;
    Idle idle;  // of the stream that is not `now`, if it was seeded
  };
  const State& state() const { return state_; }
  // Together with the generators' states of the same moment this repeats the same numbers.
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

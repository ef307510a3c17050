// RandomStreams: the random number streams of a rank of tp. Replicated and partial tensors need the same random numbers
// on every rank, shards need different ones: dropout after a rowwise layer must drop the same elements on every rank,
// dropout on a rank's own heads must not repeat the pattern of the next rank's heads.
//
// Operators draw from the default generator of the process, so RandomStreams switches the state of that generator. The
// common stream is the state that the program seeded, which must be equal on the ranks of tp. The rank's own stream is
// a second state, which replaces the state of the common stream while the model computes on shards. Each outermost call
// that needs the own stream seeds it from this rank's coordinate and the next number of the common stream, without
// consuming that number. Between calls the generator has only the common stream, so a checkpoint needs no other state
// and can be resumed on another mesh.
//
// If no operator draws numbers for shards, the common stream has the same state after a call as in a run on one rank,
// and the program draws the same numbers between steps as on one rank. Otherwise (dropout on a rank's own heads) the
// common stream advances by one number at the end of the call, so that the next call seeds another own stream. In a run
// on one rank, the stream would instead advance by the numbers of the full tensor. Source of the technique:
// Megatron-LM's tracker of two states (Narayanan et al. 2021). PyTorch's OffsetBasedRNGTracker uses offsets for DTensor
// operators instead.
//
// Stage after: apply, which takes the stream of a module from the plan; recompute, which runs a part of the model again
// with the state of the first run.
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
  // `coordinate`: the index of this rank among the ranks that share the common stream. `device`: the generators of this
  // device and of the CPU are switched.
  RandomStreams(int64_t coordinate, c10::Device device) : coordinate_(coordinate), device_(device) {}
  // The streams of ranks that share the generators of one process: `now` is the stream from which the operators of a
  // rank with generators of its own would draw, and no generator is switched.
  RandomStreams() : device_(c10::kCPU), switches_(false) {}

  // Call Begin at the start of an outermost call and End at its end, also after an exception. Both functions select the
  // common stream.
  void Begin();
  void End();

  // Selects the stream from which operators draw. Does nothing outside of a call. A change of the stream takes 200 to
  // 300 nanoseconds.
  void Use(RandomStream stream);
  RandomStream now() const { return state_.now; }
  bool switches() const { return switches_; }

  // The state of the stream that is not in the generators now.
  struct Idle {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
    at::Tensor of_device;  // undefined if the device is a CPU
  };
  // The complete state, without the states of the generators.
  struct State {
    bool open = false;  // whether a call runs
    bool made = false;  // whether this call has seeded the own stream
    bool drew = false;  // whether an operator drew from the own stream
    RandomStream now = RandomStream::kCommon;
    Idle idle;  // the state of the stream that is not `now`; only if `made`
  };
  const State& state() const { return state_; }
  // Restores `state`. To repeat the same numbers, also restore the generators to the states that they had when `state`
  // was read.
  void Restore(const State& state) { state_ = state; }

 private:
  Idle Take() const;
  void Put(const Idle& idle) const;
  void MakeOwn();
  // Whether the own stream, which is in the generators now, has changed since MakeOwn.
  bool HasDrawn() const;

  int64_t coordinate_ = 0;
  c10::Device device_;
  bool switches_ = true;
  State state_;
};

}  // namespace moonshard

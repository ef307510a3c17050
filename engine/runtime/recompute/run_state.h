// RunState: a snapshot of the random generators, of autocast and of the tag of the forward, to repeat a computation
// with the same random numbers and dtypes, as a part of the same forward.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "engine/runtime/random/random_streams.h"

namespace moonshard {

// The base of what a model knows of one of its forwards. The second runs of the parts that the forward recomputes find
// the tag of their own forward, whichever forward is the newest.
struct ForwardTag {
  ForwardTag() = default;
  virtual ~ForwardTag() = default;
  ForwardTag(const ForwardTag&) = delete;
  ForwardTag& operator=(const ForwardTag&) = delete;
};

// While it is open, `tag` (may be null) is the tag of the forward on this thread. Scopes nest.
class ForwardTagScope {
 public:
  explicit ForwardTagScope(std::shared_ptr<ForwardTag> tag);
  ~ForwardTagScope();
  ForwardTagScope(const ForwardTagScope&) = delete;
  ForwardTagScope& operator=(const ForwardTagScope&) = delete;

  // The tag of the innermost scope, or in a second run that of the first run; null without one.
  static const std::shared_ptr<ForwardTag>& Current();

 private:
  std::shared_ptr<ForwardTag> outer_;
};

class RunState {
 public:
  // Returns a snapshot of the current state of the CPU's generator, of the generators of the devices of `tensors`, of
  // autocast, of the tag of the forward, and of `streams` (may be null).
  static RunState Now(const std::vector<at::Tensor>& tensors, std::shared_ptr<RandomStreams> streams = nullptr);
  // Makes the snapshot the current state.
  void Restore() const;

 private:
  friend class RunStateScope;
  struct Generator {
    c10::Device device;
    at::Tensor state;
  };
  struct Autocast {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };

  // The current state, with the generators of these devices.
  RunState(const std::vector<c10::Device>& devices, std::shared_ptr<RandomStreams> streams);
  std::vector<c10::Device> devices() const;

  std::vector<Generator> generators_;
  std::vector<Autocast> autocast_;
  bool weight_cache_;
  std::shared_ptr<ForwardTag> tag_;
  std::shared_ptr<RandomStreams> streams_;
  RandomStreams::State of_streams_;
};

// Makes `state` the current state until the end of the scope, which restores the state before the scope. In the scope
// autocast does not use its cache of cast weights.
class RunStateScope {
 public:
  explicit RunStateScope(const RunState& state);
  ~RunStateScope();
  RunStateScope(const RunStateScope&) = delete;
  RunStateScope& operator=(const RunStateScope&) = delete;

 private:
  RunState before_;
};

}  // namespace moonshard

#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "engine/runtime/random/random_streams.h"

namespace moonshard {
namespace {

constexpr int64_t kCount = 8;

// What one rank draws in a call: common numbers, its own, common ones again, and then outside of the call.
struct Drawn {
  at::Tensor before, own, after, outside;
};

Drawn DrawAs(int64_t coordinate) {
  at::manual_seed(7);
  RandomStreams streams(coordinate, at::kCPU);
  Drawn drawn;
  streams.Begin();
  drawn.before = at::rand({kCount});
  streams.Use(RandomStream::kOwn);
  drawn.own = at::rand({kCount});
  streams.Use(RandomStream::kCommon);
  drawn.after = at::rand({kCount});
  streams.End();
  drawn.outside = at::rand({kCount});
  return drawn;
}

TEST_CASE("ranks draw the same common numbers and different ones of their own") {
  const Drawn first = DrawAs(0);
  const Drawn second = DrawAs(1);
  CHECK(at::equal(first.before, second.before));
  CHECK_FALSE(at::equal(first.own, second.own));
  CHECK(at::equal(first.after, second.after));
  CHECK(at::equal(first.outside, second.outside));
  CHECK_FALSE(at::equal(first.before, first.own));
  CHECK_FALSE(at::equal(first.before, first.after));
}

TEST_CASE("an own stream that was left goes on where it was") {
  at::manual_seed(7);
  RandomStreams streams(1, at::kCPU);
  streams.Begin();
  streams.Use(RandomStream::kOwn);
  const at::Tensor first = at::rand({kCount});
  streams.Use(RandomStream::kCommon);
  at::rand({kCount});
  streams.Use(RandomStream::kOwn);
  const at::Tensor second = at::rand({kCount});
  streams.End();

  at::manual_seed(7);
  RandomStreams again(1, at::kCPU);
  again.Begin();
  again.Use(RandomStream::kOwn);
  CHECK(at::equal(at::rand({2 * kCount}), at::cat({first, second})));
  again.End();
}

TEST_CASE("a restored state draws the same numbers again") {
  at::manual_seed(7);
  RandomStreams streams(1, at::kCPU);
  streams.Begin();
  streams.Use(RandomStream::kOwn);
  at::rand({kCount});
  const RandomStreams::State state = streams.state();
  const at::Generator& generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor bits = generator.get_state();
  const at::Tensor first = at::rand({kCount});
  streams.Use(RandomStream::kCommon);
  const at::Tensor common = at::rand({kCount});

  at::Generator(generator).set_state(bits);
  streams.Restore(state);
  CHECK(at::equal(at::rand({kCount}), first));
  streams.Use(RandomStream::kCommon);
  CHECK(at::equal(at::rand({kCount}), common));
  streams.End();
}

TEST_CASE("the streams of ranks that share a generator tell which stream is meant, and leave the generator alone") {
  at::manual_seed(5);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  RandomStreams streams;
  streams.Use(RandomStream::kOwn);
  CHECK(streams.now() == RandomStream::kCommon);  // outside of a call
  streams.Begin();
  streams.Use(RandomStream::kOwn);
  CHECK(streams.now() == RandomStream::kOwn);
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  streams.Use(RandomStream::kCommon);
  CHECK(streams.now() == RandomStream::kCommon);
  streams.Use(RandomStream::kOwn);
  streams.End();
  CHECK(streams.now() == RandomStream::kCommon);
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
}

}  // namespace
}  // namespace moonshard

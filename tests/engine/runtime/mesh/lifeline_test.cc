#include "engine/runtime/mesh/lifeline.h"

#include <catch2/catch.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

namespace moonshard {
namespace {

using State = Lifeline::State;
constexpr std::chrono::milliseconds kLimit{60'000};

// Lets both ends look until `wanted` holds, for ten seconds at most.
bool Within(const std::vector<Lifeline*>& lines, const std::function<bool()>& wanted) {
  for (int tries = 0; tries < 1000 && !wanted(); ++tries) {
    for (Lifeline* line : lines) line->Look();
    usleep(10'000);
  }
  return wanted();
}

TEST_CASE("a connection stands until the process of one of its ends closes it") {
  const auto zero = Lifeline::Listen("127.0.0.1", 3, "token", kLimit);
  REQUIRE(zero != nullptr);
  auto one = Lifeline::Connect("127.0.0.1", zero->port(), 1, "token", kLimit);
  auto two = Lifeline::Connect("127.0.0.1", zero->port(), 2, "token", kLimit);
  REQUIRE(one != nullptr);
  REQUIRE(two != nullptr);
  CHECK(zero->Of(1) == State::kNone);
  const std::vector<Lifeline*> all = {zero.get(), one.get(), two.get()};
  CHECK(Within(all, [&] { return one->Of(0) == State::kStands && two->Of(0) == State::kStands; }));
  CHECK(zero->Of(1) == State::kStands);
  CHECK(zero->Of(2) == State::kStands);
  one.reset();
  CHECK(Within({zero.get(), two.get()}, [&] { return zero->Of(1) == State::kEnded; }));
  CHECK(zero->Of(2) == State::kStands);
  CHECK(two->Of(0) == State::kStands);
}

TEST_CASE("rank 0 that ends is noticed by the others") {
  auto zero = Lifeline::Listen("", 2, "token", kLimit);  // at all addresses
  REQUIRE(zero != nullptr);
  const auto one = Lifeline::Connect("127.0.0.1", zero->port(), 1, "token", kLimit);
  REQUIRE(one != nullptr);
  CHECK(Within({zero.get(), one.get()}, [&] { return one->Of(0) == State::kStands; }));
  zero.reset();
  CHECK(Within({one.get()}, [&] { return one->Of(0) == State::kEnded; }));
}

TEST_CASE("a peer without the token, a rank that there is not and a second of one rank are no ranks") {
  const auto zero = Lifeline::Listen("127.0.0.1", 2, "token", kLimit);
  REQUIRE(zero != nullptr);
  const auto one = Lifeline::Connect("127.0.0.1", zero->port(), 1, "token", kLimit);
  REQUIRE(Within({zero.get(), one.get()}, [&] { return one->Of(0) == State::kStands; }));
  for (const auto& [rank, token] : {std::pair(1, "other"), {2, "token"}, {0, "token"}, {1, "token"}}) {
    const auto stranger = Lifeline::Connect("127.0.0.1", zero->port(), rank, token, kLimit);
    REQUIRE(stranger != nullptr);
    for (int i = 0; i < 10; ++i) {
      for (Lifeline* line : {zero.get(), one.get(), stranger.get()}) line->Look();
      usleep(10'000);
    }
    CHECK(stranger->Of(0) == State::kNone);
    CHECK(zero->Of(1) == State::kStands);
    CHECK(one->Of(0) == State::kStands);
  }
}

TEST_CASE("a connection without an answer is given up after the limit") {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(fd >= 0);
  KeepConnection(fd, std::chrono::milliseconds(45'000));
  const auto option = [fd](int level, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    CHECK(getsockopt(fd, level, name, &value, &size) == 0);
    return value;
  };
  CHECK(option(SOL_SOCKET, SO_KEEPALIVE) == 1);
  CHECK(option(IPPROTO_TCP, TCP_KEEPIDLE) == 10);
  CHECK(option(IPPROTO_TCP, TCP_KEEPINTVL) == 5);
  CHECK(option(IPPROTO_TCP, TCP_USER_TIMEOUT) == 45'000);
  close(fd);
}

}  // namespace
}  // namespace moonshard

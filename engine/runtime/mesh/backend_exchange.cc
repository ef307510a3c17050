// The exchange where ranks are on several machines: an all-gather of bytes on a CPU backend. Tensors are kept until
// Finish, because the backend works on them on a thread of its own.
#include <cstring>
#include <map>
#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "engine/core/base/check.h"
#include "engine/runtime/mesh/rank_exchange.h"

namespace moonshard {
namespace {

struct UnderWay {
  at::Tensor input;
  at::Tensor output;
  c10::intrusive_ptr<c10d::Work> work;
};

class BackendExchange final : public RankExchange {
 public:
  BackendExchange(c10::intrusive_ptr<c10d::Backend> backend, int64_t size)
      : backend_(std::move(backend)), size_(size) {}

  int64_t Start(std::span<const uint8_t> mine) override {
    const auto bytes = static_cast<int64_t>(mine.size());
    UnderWay exchange{at::empty({bytes}, at::kByte), at::empty({size_ * bytes}, at::kByte), nullptr};
    std::memcpy(exchange.input.data_ptr(), mine.data(), mine.size());
    exchange.work = backend_->_allgather_base(exchange.output, exchange.input);
    under_way_.emplace(++started_, std::move(exchange));
    return started_;
  }

  std::vector<uint8_t> Finish(int64_t started) override {
    auto found = under_way_.extract(started);
    Check(!found.empty(), "Finish of an exchange that is not pending");
    found.mapped().work->wait();
    const at::Tensor& output = found.mapped().output;
    const auto* begin = output.data_ptr<uint8_t>();
    return {begin, begin + output.numel()};
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  int64_t size_;
  int64_t started_ = 0;
  std::map<int64_t, UnderWay> under_way_;
};

}  // namespace

std::shared_ptr<RankExchange> MakeBackendExchange(c10::intrusive_ptr<c10d::Backend> backend, int64_t size) {
  return std::make_shared<BackendExchange>(std::move(backend), size);
}

}  // namespace moonshard

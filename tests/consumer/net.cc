#include "net.h"

namespace host {

BlockImpl::BlockImpl(int64_t width, int64_t inner)
    : norm_(register_module("norm", moonshard::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
      up_(register_module("up", moonshard::nn::Linear(width, inner))),
      down_(register_module("down", moonshard::nn::Linear(inner, width))) {}

torch::Tensor BlockImpl::forward(torch::Tensor x) { return x + down_(torch::gelu(up_(norm_(x)))); }

NetImpl::NetImpl(int64_t vocabulary, int64_t width, int64_t inner, int64_t blocks)
    : embed_(register_module("embed", moonshard::nn::Embedding(vocabulary, width))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      head_(register_module("head", moonshard::nn::Linear(width, vocabulary))) {
  for (int64_t i = 0; i < blocks; ++i) blocks_->push_back(Block(width, inner));
}

torch::Tensor NetImpl::forward(torch::Tensor ids) {
  torch::Tensor x = embed_(ids);
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  return head_(x);
}

}  // namespace host

// The host's own model: token embedding, residual blocks and a head, as a LibTorch user would write it. Only the
// layers' namespace and MOONSHARD_MODULE differ from a model without moonshard.
#pragma once

#include <torch/torch.h>

#include <moonshard/moonshard.h>

namespace host {

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t width, int64_t inner);
  torch::Tensor forward(torch::Tensor x);  // [batch, sequence, width], the same out

 private:
  moonshard::nn::LayerNorm norm_;
  moonshard::nn::Linear up_;
  moonshard::nn::Linear down_;
};
MOONSHARD_MODULE(Block);

class NetImpl : public torch::nn::Module {
 public:
  NetImpl(int64_t vocabulary, int64_t width, int64_t inner, int64_t blocks);
  torch::Tensor forward(torch::Tensor ids);  // int64 [batch, sequence]; logits [batch, sequence, vocabulary]

 private:
  moonshard::nn::Embedding embed_;
  torch::nn::ModuleList blocks_;
  moonshard::nn::Linear head_;
};
MOONSHARD_MODULE(Net);

}  // namespace host

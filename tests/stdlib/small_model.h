// Small decoders under the names of real ones, for tests of plans: what a family's attention, mixers and experts do to
// shapes and gradients, with no more mathematics than that takes. In float64, with parameters that are the same in
// every build. Sizes that a rank has are read off the tensors that it holds, as a model that runs under a plan must.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"

namespace moonshard::test {

inline constexpr int64_t kHidden = 16;
inline constexpr int64_t kHeads = 4;
inline constexpr int64_t kKeyHeads = 2;
inline constexpr int64_t kHeadDim = 4;
inline constexpr int64_t kWide = 12;
inline constexpr int64_t kVocabulary = 22;

// A module whose children, parameters and forward are given from outside.
struct PartImpl : torch::nn::Module {
  std::function<at::Tensor(const at::Tensor&)> body;
  at::Tensor forward(const at::Tensor& x) { return body(x); }
};
MOONSHARD_MODULE(Part);

// Experts with stacked parameters: tokens [N, H], ids and weights [N, K] -> [N, H].
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl(int64_t experts, bool gated);
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& ids, const at::Tensor& weights);
  bool gated;
  at::Tensor up, down;
};
MOONSHARD_MODULE(Experts);

// What a layer is made of: registers its children in the layer and answers the layer's forward.
using Layer = std::function<std::function<at::Tensor(const at::Tensor&)>(torch::nn::Module&)>;

// Blocks; each answers a forward.
using Forward = std::function<at::Tensor(const at::Tensor&)>;
Forward Norm(torch::nn::Module& parent, const std::string& name);
struct AttentionNames {
  std::string out = "o_proj";
  bool head_norms = false;
  bool output_gate = false;    // output_gate_proj
  bool gated_queries = false;  // q_proj gives each head its query and its gate
  std::string fused;           // name of one projection, contiguous or
  bool interleaved = false;    // key head by key head
};
Part Attention(const AttentionNames& names = {});
Part LatentAttention();
Part DeltaNet();
Part Mamba();
// Mamba 2 of 4 heads of 3 features, with B and C for each of so many groups of heads. `norm_groups`: of the gated norm.
Part Mamba2(int64_t groups, int64_t norm_groups);
Part Mlp(bool gated = true);
Part FusedMlp(bool interleaved);
// With the router's logits added to `loss_terms`, where that is given.
Part ExpertsBlock(bool gated, bool shared, std::vector<at::Tensor>* loss_terms);

struct SmallModel {
  std::shared_ptr<torch::nn::Module> root;
  std::function<at::Tensor(const at::Tensor&)> forward;  // ids [B, T] -> logits [B, T, V]
  std::shared_ptr<std::vector<at::Tensor>> loss_terms;   // of the last forward
};

struct ModelNames {
  std::string prefix = "model";  // may have one dot
  std::string embed = "embed_tokens";
  std::string norm = "norm";
  std::string head = "lm_head";
  bool image = false;  // something whole is added to the embeddings
};

SmallModel MakeModel(const ModelNames& names,
                     const std::function<std::vector<Layer>(std::vector<at::Tensor>*)>& layers);

}  // namespace moonshard::test

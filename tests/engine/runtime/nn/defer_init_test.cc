// DeferInit and Materialize: shapes without storage, then shards under the same tensors.
#include "engine/runtime/nn/defer_init.h"

#include <torch/nn/module.h>
#include <torch/nn/options/embedding.h>
#include <torch/nn/options/linear.h>
#include <torch/nn/options/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <catch2/catch.hpp>

#include "engine/core/base/check.h"
#include "engine/runtime/nn/embedding.h"
#include "engine/runtime/nn/linear.h"
#include "engine/runtime/nn/norm.h"

namespace {

namespace ms = moonshard::nn;
using torch::Tensor;

}  // namespace

TEST_CASE("layers made in the scope have shapes and no storage") {
  ms::Linear linear = nullptr;
  ms::Embedding embedding = nullptr;
  ms::LayerNorm layer_norm = nullptr;
  ms::RMSNorm rms_norm = nullptr;
  {
    ms::DeferInit defer;
    { ms::DeferInit nested; }
    REQUIRE(ms::DeferInit::active());
    linear = ms::Linear(1 << 20, 1 << 20);  // 4 TiB if it were real
    embedding = ms::Embedding(torch::nn::EmbeddingOptions(1 << 20, 1 << 20).padding_idx(-1));
    layer_norm = ms::LayerNorm(torch::nn::LayerNormOptions({3, 6}));
    rms_norm = ms::RMSNorm(6);
  }
  CHECK_FALSE(ms::DeferInit::active());
  CHECK(linear->weight.sizes() == torch::IntArrayRef({1 << 20, 1 << 20}));
  CHECK(linear->bias.sizes() == torch::IntArrayRef({1 << 20}));
  CHECK(linear->options.in_features() == 1 << 20);
  CHECK(embedding->options.padding_idx() == (1 << 20) - 1);
  CHECK(layer_norm->bias.sizes() == torch::IntArrayRef({3, 6}));
  for (const std::shared_ptr<torch::nn::Module>& module :
       {linear.ptr()->shared_from_this(), embedding.ptr()->shared_from_this(), layer_norm.ptr()->shared_from_this(),
        rms_norm.ptr()->shared_from_this()}) {
    for (const auto& entry : module->named_parameters()) {
      INFO(entry.key());
      CHECK(entry.value().is_meta());
      CHECK(entry.value().requires_grad());
    }
  }
  CHECK(linear->weight.is_same(linear->named_parameters()["weight"]));
  CHECK(embedding->weight.is_same(embedding->named_parameters()["weight"]));
  CHECK(rms_norm->weight.is_same(rms_norm->named_parameters()["weight"]));
  CHECK_FALSE(ms::Linear(2, 2)->weight.is_meta());
  CHECK(ms::Empty({2}, torch::kDouble).scalar_type() == torch::kDouble);
}

TEST_CASE("a shard goes under the same tensor: member, registered handle, tie, optimizer and backward agree") {
  const bool from_meta = GENERATE(true, false);
  std::optional<ms::DeferInit> defer;
  if (from_meta) defer.emplace();
  ms::Embedding embedding(11, 4);
  ms::Linear head(torch::nn::LinearOptions(4, 11).bias(false));
  head->TieWeight(embedding->weight);
  defer.reset();

  c10::TensorImpl* identity = embedding->weight.unsafeGetTensorImpl();
  Tensor handle = embedding->named_parameters()["weight"];
  torch::manual_seed(5);
  const Tensor shard = torch::randn({3, 4});
  Tensor target = embedding->weight;
  ms::Materialize(target, shard);

  CHECK(embedding->weight.unsafeGetTensorImpl() == identity);
  CHECK(head->weight.unsafeGetTensorImpl() == identity);
  for (const Tensor& view : {embedding->weight, handle, head->weight, head->named_parameters()["weight"]}) {
    CHECK(view.is_cpu());
    CHECK(torch::equal(view, shard));
    CHECK(view.requires_grad());
    CHECK(view.is_leaf());
    CHECK(view.data_ptr() == shard.data_ptr());
  }

  torch::optim::SGD optimizer({embedding->weight}, 1.0);
  const Tensor x = torch::randn({2, 4});
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) head(x).sum().backward();
  CHECK(torch::allclose(embedding->weight.grad(), 2 * x.sum(0, true).expand({3, 4}), 1e-5, 1e-5));
  const Tensor before = shard.clone();
  optimizer.step();
  CHECK(torch::allclose(head->weight, before - embedding->weight.grad(), 1e-5, 1e-5));
}

TEST_CASE("an ordinary parameter that was trained takes a shard of another shape and dtype") {
  Tensor parameter = torch::randn({4, 2}).set_requires_grad(true);
  const Tensor kept_graph = parameter * 2;  // holds the node that accumulates at the old shape
  (parameter * parameter).sum().backward();
  ms::Materialize(parameter, torch::ones({3}, torch::kDouble));
  CHECK_FALSE(parameter.grad().defined());
  (parameter * 5).sum().backward();
  CHECK(torch::equal(parameter.grad(), torch::full({3}, 5.0, torch::kDouble)));
  CHECK(kept_graph.size(0) == 4);
}

TEST_CASE("requires_grad and the version counter stay the parameter's own") {
  Tensor frozen = torch::empty({4}, torch::kMeta);
  ms::Materialize(frozen, torch::ones({2}));
  CHECK_FALSE(frozen.requires_grad());
  Tensor parameter = torch::empty({4}, torch::TensorOptions(torch::kMeta).requires_grad(true));
  const auto version = parameter._version();
  Tensor shard = torch::zeros({2});
  shard.add_(1);
  ms::Materialize(parameter, shard);
  CHECK(parameter._version() == version);
  CHECK_THROWS_AS(ms::Materialize(parameter, torch::ones({2}).set_requires_grad(true)), moonshard::InternalError);
  CHECK_THROWS_AS(ms::Materialize(parameter, parameter), moonshard::InternalError);
}

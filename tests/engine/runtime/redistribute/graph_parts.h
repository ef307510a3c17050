// Small graphs for tests of gradient sums: leaves and constants of one value, and parts whose backward fails or runs a
// backward of its own.
#pragma once

#include <stdexcept>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace moonshard::test {

inline at::Tensor Number(double value, int64_t size = 3) { return at::full({size}, value, at::kDouble); }
inline at::Tensor Leaf(double value = 1, int64_t size = 3) { return Number(value, size).set_requires_grad(true); }
inline void Backward(const at::Tensor& loss, bool retain = false) { torch::autograd::backward({loss}, {}, retain); }

struct Throws : torch::autograd::Function<Throws> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::runtime_error("a backward's own error");
  }
};

// A part of the graph that runs a backward of its own inside the outer one, as recomputation does.
struct Nested : torch::autograd::Function<Nested> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& parameter) {
    ctx->save_for_backward({x});
    ctx->saved_data["parameter"] = parameter;
    return x * parameter.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor parameter = ctx->saved_data["parameter"].toTensor();
    const at::AutoGradMode on(true);
    at::Tensor x = ctx->get_saved_variables()[0].detach().set_requires_grad(true);
    torch::autograd::backward({x * parameter}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace moonshard::test

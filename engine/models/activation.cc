#include "engine/models/activation.h"

#include <ATen/Functions.h>

#include "engine/core/base/check.h"

namespace moonshard {
namespace {

std::optional<Activation> ActivationOf(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  return std::nullopt;
}

}  // namespace

at::Tensor Activate(Activation activation, const at::Tensor& x) {
  switch (activation) {
    case Activation::kSilu: return at::silu(x);
    case Activation::kGelu: return at::gelu(x);
    case Activation::kGeluTanh: return at::gelu(x, "tanh");
    case Activation::kRelu: return at::relu(x);
  }
  Check(false, "unknown activation");
  return x;
}

Activation ReadActivation(ConfigReader& fields, std::string_view name, Activation otherwise) {
  const std::optional<std::string> text = fields.String(name);
  if (!text) return otherwise;
  if (const std::optional<Activation> known = ActivationOf(*text)) return *known;
  fields.Refuse(name, "activation '" + *text + "' is not supported",
                "silu, swish, gelu, gelu_new, gelu_pytorch_tanh or relu");
  return otherwise;
}

}  // namespace moonshard

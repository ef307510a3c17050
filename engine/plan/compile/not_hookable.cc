// A plan acts around a module's call, so the call must pass through moonshard. Why it does not decides what can be
// done: LibTorch's own class has a counterpart here or can be wrapped, a class of the host is declared by another
// macro, and a module that LibTorch calls from within another one is out of reach altogether.
#include "engine/plan/compile/checks.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace moonshard {
namespace {

constexpr std::array<std::string_view, 5> kDropIns = {"Embedding", "EmbeddingBag", "GroupNorm", "LayerNorm", "Linear"};

// Classes of LibTorch that compute with the sizes they were made with, or with layers that they make themselves: a hook
// around their calls would not make them work on shards.
constexpr std::array<std::string_view, 6> kOfFixedSize = {"MultiheadAttention", "Transformer",
                                                          "TransformerDecoder", "TransformerDecoderLayer",
                                                          "TransformerEncoder", "TransformerEncoderLayer"};

bool IsAmong(const std::string& kind, std::span<const std::string_view> kinds) {
  return std::ranges::find(kinds, kind) != kinds.end();
}

// What to change in the model. Every text can be followed as it is written (tests/dsl/embed/suggestions_test.cc).
std::string HowToHook(const Module& module) {
  const std::string kind = module.kind.empty() ? "Name" : module.kind;
  const std::string makes =
      module.path.empty() ? "where it is created" : "where the model creates '" + module.path + "'";
  std::string declare = "declare its class with MOONSHARD_MODULE(" + kind + ") in place of TORCH_MODULE(" + kind + ")";
  switch (module.origin) {
    case ModuleOrigin::kWithinTorch: {
      const std::string around(ParentOf(module.path));
      return "the LibTorch module '" + around + "' does not call this module: rewrite the class of '" + around +
             "' with layers of moonshard::nn, or replicate '" + around + "': at(\"" + around +
             "{,.**}\", replicated())";
    }
    case ModuleOrigin::kTorch:
      if (IsAmong(kind, kOfFixedSize)) {
        return "LibTorch's " + kind +
               " computes with its full sizes: replace it by a class with layers of moonshard::nn, or replicate "
               "it: at(\"" +
               module.path + "{,.**}\", replicated())";
      }
      if (IsAmong(kind, kDropIns)) return makes + ", use moonshard::nn::" + kind + " in place of torch::nn::" + kind;
      return makes + ", use a class that MOONSHARD_MODULE_IMPL(" + kind + ", torch::nn::" + kind +
             "Impl) defines, in place of torch::nn::" + kind;
    case ModuleOrigin::kMoonshard:
      return makes + ", use moonshard::nn::" + kind + "(...), not moonshard::nn::" + kind + "Impl(...)";
    case ModuleOrigin::kHost: return declare + ", and " + makes + " use " + kind + "(...), not " + kind + "Impl(...)";
    case ModuleOrigin::kUnknown: break;
  }
  if (IsAmong(kind, kDropIns)) {
    return makes + ", use moonshard::nn::" + kind + " in place of torch::nn::" + kind +
           "; for a class of your own, use MOONSHARD_MODULE(Name) in place of TORCH_MODULE(Name)";
  }
  return declare;
}

}  // namespace

Diagnostic NotHookable(const Module& module, const std::string& consequence, const SourceSpan& where) {
  const std::string name = module.path.empty() ? "the model itself" : "'" + module.path + "'";
  Diagnostic d =
      MakeDiagnostic(Finding::kNotHookable, "calls of " + name + " cannot be intercepted, so " + consequence, where);
  d.path = module.path;
  const bool torch = module.origin == ModuleOrigin::kTorch || module.origin == ModuleOrigin::kWithinTorch;
  const std::string kind = module.kind.empty() ? "its class" : "'" + module.kind + "'";
  const bool bare = module.origin == ModuleOrigin::kHost || module.origin == ModuleOrigin::kMoonshard;
  d.declared = bare ? "an object of " + kind + " without moonshard's hook"
                    : kind + " is " + (torch ? "a class of LibTorch" : "an ordinary LibTorch module");
  d.required = "a module whose calls moonshard intercepts";
  d.help = HowToHook(module);
  return d;
}

}  // namespace moonshard

// The shipped plans on small models of their families, on 2 and 4 thread ranks, with and without sequence parallelism
// and `stable`: logits and every gradient against the same model without a plan. Families with a reference architecture
// are compared with transformers in tests/parity; these are the others, and the options that those leave out.
#include <catch2/catch.hpp>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <map>
#include <string>
#include <vector>

#include "dsl/language/eval/load_plan.h"
#include "engine/runtime/apply/live_tree.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/stdlib/small_model.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

struct Case {
  std::string what;
  std::string plan;
  std::string config;  // beside the heads and the layers
  std::function<SmallModel()> make;
  std::map<std::string, JsonValue> options;
  int64_t most_ranks = 4;
};

// x + mixer(norm(x)), then x + mlp(norm(x)).
Layer Usual(Part mixer, const std::string& name, Part mlp, const std::string& second = "post_attention_layernorm") {
  return [=](torch::nn::Module& layer) mutable -> Forward {
    const Forward first = Norm(layer, "input_layernorm");
    layer.register_module(name, mixer);
    const Forward next = Norm(layer, second);
    layer.register_module("mlp", mlp);
    return [=](const at::Tensor& x) mutable {
      const at::Tensor mixed = x + mixer(first(x));
      return mixed + mlp(next(mixed));
    };
  };
}

Layer Gemma(Part attention, Part mlp) {
  return [=](torch::nn::Module& layer) mutable -> Forward {
    const Forward first = Norm(layer, "input_layernorm");
    layer.register_module("self_attn", attention);
    const Forward second = Norm(layer, "post_attention_layernorm");
    const Forward third = Norm(layer, "pre_feedforward_layernorm");
    layer.register_module("mlp", mlp);
    const Forward fourth = Norm(layer, "post_feedforward_layernorm");
    return [=](const at::Tensor& x) mutable {
      const at::Tensor mixed = x + second(attention(first(x)));
      return mixed + fourth(mlp(third(mixed)));
    };
  };
}

Layer FalconH1(const Part& mixer) {
  return [=](torch::nn::Module& layer) mutable -> Forward {
    const Forward first = Norm(layer, "input_layernorm");
    Part mamba = layer.register_module("mamba", mixer);
    Part attention = layer.register_module("self_attn", Attention());
    const Forward second = Norm(layer, "pre_ff_layernorm");
    Part mlp = layer.register_module("feed_forward", Mlp());
    return [=](const at::Tensor& x) mutable {
      const at::Tensor normed = first(x);
      const at::Tensor mixed = x + mamba(normed) + attention(normed * 0.5);
      return mixed + mlp(second(mixed));
    };
  };
}

Layer NemotronH(Part mixer) {
  return [=](torch::nn::Module& layer) mutable -> Forward {
    const Forward norm = Norm(layer, "norm");
    layer.register_module("mixer", mixer);
    return [=](const at::Tensor& x) mutable { return x + mixer(norm(x)); };
  };
}

using Terms = std::vector<at::Tensor>*;

std::vector<Case> PlanCases() {
  const auto usual = [](const ModelNames& names, const AttentionNames& attention, std::function<Part()> mlp) {
    return [=] {
      return MakeModel(names, [&](Terms) {
        return std::vector<Layer>{Usual(Attention(attention), "self_attn", mlp()),
                                  Usual(Attention(attention), "self_attn", mlp())};
      });
    };
  };
  const auto gated = [] { return Mlp(); };
  const auto qwen3_5 = [] {
    return MakeModel({}, [](Terms) {
      return std::vector<Layer>{Usual(DeltaNet(), "linear_attn", Mlp()),
                                Usual(Attention({.head_norms = true, .gated_queries = true}), "self_attn", Mlp())};
    });
  };
  const std::string delta = R"(, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3,
                               "linear_value_head_dim": 3)";
  const auto nemotron_h = [] {
    return MakeModel({.embed = "embeddings", .norm = "norm_f"}, [](Terms terms) {
      return std::vector<Layer>{NemotronH(Mamba()), NemotronH(Attention()), NemotronH(Mlp(false)),
                                NemotronH(ExpertsBlock(false, true, terms))};
    });
  };
  const auto phi3 = usual({}, {.fused = "qkv_proj"}, [] { return FusedMlp(false); });
  const std::string latent = R"(, "q_lora_rank": 6, "moe_intermediate_size": 12)";
  const auto deepseek = [] {
    return MakeModel({}, [](Terms terms) {
      return std::vector<Layer>{Usual(LatentAttention(), "self_attn", Mlp()),
                                Usual(LatentAttention(), "self_attn", ExpertsBlock(true, true, terms))};
    });
  };
  const auto mixtral = [] {
    return MakeModel({}, [](Terms terms) {
      return std::vector<Layer>{Usual(Attention(), "self_attn", ExpertsBlock(true, false, terms)),
                                Usual(Attention(), "self_attn", ExpertsBlock(true, false, terms))};
    });
  };
  return {
      {"DeepSeek-V3", "deepseek_v3", latent, deepseek},
      {"DeepSeek-V3, whole experts", "deepseek_v3", latent, deepseek, {{"expert_parallel", true}}},
      {"Mixtral, stacked experts", "mixtral", "", mixtral},
      {"Mixtral, whole experts", "mixtral", "", mixtral, {{"expert_parallel", true}}},
      {"Qwen3.5", "qwen3_5", delta, qwen3_5},
      {"Qwen3.5, heads of the delta nets", "qwen3_5", delta, qwen3_5, {{"linear_heads", true}}, 2},
      {"Falcon-H1", "falcon_h1", "",
       [] {
         return MakeModel({.norm = "final_layernorm"}, [](Terms) {
           return std::vector<Layer>{FalconH1(Mamba()), FalconH1(Mamba())};
         });
       }},
      {"Falcon-H1, heads of the mixers",
       "falcon_h1",
       R"(, "mamba_n_heads": 4, "mamba_n_groups": 1, "mamba_d_state": 2)",
       [] {
         return MakeModel({.norm = "final_layernorm"}, [](Terms) {
           return std::vector<Layer>{FalconH1(Mamba2(1, 1)), FalconH1(Mamba2(1, 1))};
         });
       },
       {{"mamba_heads", true}}},
      {"Nemotron-H, heads of the mixers",
       "nemotron_h",
       R"(, "mamba_num_heads": 4, "n_groups": 2, "ssm_state_size": 2)",
       [] {
         return MakeModel({.embed = "embeddings", .norm = "norm_f"}, [](Terms) {
           return std::vector<Layer>{NemotronH(Mamba2(2, 2)), NemotronH(Mlp(false))};
         });
       },
       {{"mamba_heads", true}}},
      {"Nemotron-H", "nemotron_h", "", nemotron_h},
      {"Nemotron-H, whole experts", "nemotron_h", "", nemotron_h, {{"expert_parallel", true}}},
      {"Nemotron-H, all heads", "nemotron_h", "", nemotron_h, {{"all_heads", true}}},
      {"Phi-3", "phi3", "", phi3},
      {"Phi-3, all heads", "phi3", "", phi3, {{"all_heads", true}}},
      {"Baichuan, all heads", "baichuan", "", usual({}, {.fused = "W_pack"}, gated), {{"all_heads", true}}},
      {"Llama, contiguous", "llama", "", phi3, {{"fused", "contiguous"}}},
      {"Llama, interleaved",
       "llama",
       "",
       usual({}, {.fused = "qkv_proj", .interleaved = true}, [] { return FusedMlp(true); }),
       {{"fused", "interleaved"}},
       2},
      {"Gemma 3 with images", "gemma3", R"(, "text_config": {"num_attention_heads": 4, "num_key_value_heads": 2})",
       [] {
         return MakeModel({.prefix = "model.language_model", .image = true}, [](Terms) {
           return std::vector<Layer>{Gemma(Attention({.head_norms = true}), Mlp()),
                                     Gemma(Attention({.head_norms = true}), Mlp())};
         });
       }},
      {"MuseGlimmer", "muse_glimmer", "", usual({}, {.output_gate = true}, gated)},
      {"the default plan", "default", "", usual({}, {.head_norms = true}, gated)},
  };
}

struct Step {
  at::Tensor logits;
  at::Tensor weights;
};

// Two backwards of a loss that holds every logit, and the router's own terms.
Step RunTwice(const SmallModel& model) {
  const at::Tensor ids = (at::arange(10) * 7).remainder(kVocabulary).view({2, 5});
  Step step;
  for (int i = 0; i < 2; ++i) {
    step.logits = model.forward(ids);
    at::Tensor loss =
        (step.logits * at::cos(at::arange(step.logits.numel(), at::kDouble)).view(step.logits.sizes())).sum();
    for (const at::Tensor& term : *model.loss_terms) loss = loss + term;
    loss.backward();
  }
  return step;
}

double Difference(const at::Tensor& got, const at::Tensor& want) {
  Expect(got.defined() == want.defined(), "a tensor or none");
  if (!got.defined()) return 0;
  Expect(got.sizes() == want.sizes(), "another shape");
  return ((got - want).abs().max() / (1 + want.abs().max())).item<double>();
}

PlanInputs InputsFor(const Case& test_case, const ModuleTree& tree, const MeshShape& mesh) {
  PlanInputs inputs;
  inputs.config = ParseJson(R"({"num_attention_heads": 4, "hidden_size": 16, "intermediate_size": 12,
                                "num_hidden_layers": 2, "num_key_value_heads": 2)" +
                                test_case.config + "}",
                            "config.json")
                      .ValueOrThrow();
  inputs.mesh = mesh;
  inputs.model = &tree;
  inputs.options = test_case.options;
  return inputs;
}

void Check(const Case& test_case, int64_t tp, bool sequence_parallel, bool stable) {
  const SmallModel full = test_case.make();
  const Step expected = RunTwice(full);
  RunRanks("tp=" + std::to_string(tp), [&](DeviceMesh& mesh) {
    const SmallModel model = test_case.make();
    const LiveTree live = ReadLiveTree(*model.root).ValueOrThrow();
    PlanInputs inputs = InputsFor(test_case, *live.tree, mesh.shape());
    inputs.options["sequence_parallel"] = sequence_parallel;
    inputs.options["stable"] = stable;
    const Plan plan = LoadPlanFile(test_case.plan, inputs).ValueOrThrow();
    const auto applied = ParallelizeModule(*model.root, plan, mesh);
    const Step step = RunTwice(model);
    constexpr double kTolerance = 1e-10;
    Expect(Difference(step.logits.detach(), expected.logits.detach()) < kTolerance, "the logits differ");
    // What stable promises: no sum of terms runs over ranks in a forward. The one that remains is the embedding's,
    // where all terms but one are zero.
    const auto sums = [&](CollectiveKind kind) { return applied->counts().of(Direction::kForward, kind).count; };
    const int64_t forwards = 2;
    Expect(!stable || sums(CollectiveKind::kAllReduce) + sums(CollectiveKind::kReduceScatter) <= forwards,
           "a stable forward sums over ranks");
    const auto parameters = full.root->named_parameters();
    for (const LiveParameter& p : applied->parameters()) {
      const double difference = Difference(GatherFull(*applied, p, p.tensor.grad()), parameters[p.path].grad());
      Expect(difference < kTolerance, "gradient of " + p.path + " differs by " + std::to_string(difference));
    }
    Expect(applied->Findings().empty(), "every planned module was called");
  });
}

TEST_CASE("plans of families on small models") {
  for (const Case& test_case : PlanCases()) {
    for (const int64_t tp : {2, 4}) {
      if (tp > test_case.most_ranks) continue;
      for (const bool sequence_parallel : {false, true}) {
        for (const bool stable : {false, true}) {
          DYNAMIC_SECTION(test_case.what << " tp=" << tp << (sequence_parallel ? " sequence" : "")
                                         << (stable ? " stable" : "")) {
            Check(test_case, tp, sequence_parallel, stable);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace moonshard::test

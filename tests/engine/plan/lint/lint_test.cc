// Which suspicions a plan raises, and which it does not. Their texts are goldens in tests/cases/mistakes and
// engine/core/findings/pages; that no shipped plan raises one is tests/cases/families.
#include <catch2/catch.hpp>
#include <set>

#include "engine/plan/lint/flow.h"
#include "tests/support/plan_case.h"

namespace moonshard {
namespace {

const std::set<std::string> kSuspicions = {"MS0209", "MS0303", "MS0304", "MS0313", "MS0314",
                                           "MS0315", "MS0316", "MS0317", "MS0320"};

// The suspicions about a plan, each with the path of the module; an error of another kind as its identifier.
std::multiset<std::string> Raised(const std::string& tree, const std::string& rules, const std::string& mesh = "tp=2",
                                  const std::string& config = "{}") {
  PlanCase plan_case;
  plan_case.config = config;
  plan_case.tree = tree;
  plan_case.mesh = mesh;
  plan_case.plan = "return plan {\n" + rules + "\n}";
  std::multiset<std::string> out;
  for (const Diagnostic& d : DiagnosticsOf(plan_case)) {
    const std::string id = InfoOf(d.finding).id;
    if (kSuspicions.contains(id)) {
      out.insert(id + " " + d.path);
    } else if (d.severity == Severity::kError) {
      out.insert(id);
    }
  }
  return out;
}

using Raises = std::multiset<std::string>;

const std::string kMlp =
    "layers.{0..1}.up Linear weight:float32[256, 64]\n"
    "layers.{0..1}.down Linear weight:float32[64, 256]\n";

TEST_CASE("shards want a partner in their block") {
  CHECK(Raised(kMlp, R"(at("layers.*.up", colwise {}), at("layers.*.down", rowwise {}))").empty());
  CHECK(Raised(kMlp, R"(at("layers.*.up", colwise {}), at("layers.*.down", replicated {}))") ==
        Raises{"MS0313 layers.0.up"});
  CHECK(Raised(kMlp, R"(at("layers.*.up", replicated {}), at("layers.*.down", rowwise {}))") ==
        Raises{"MS0314 layers.0.down"});
  CHECK(
      Raised(kMlp, R"(at("layers.*.up", colwise { output = replicate }), at("layers.*.down", replicated {}))").empty());
  CHECK(
      Raised(kMlp, R"(at("layers.*.up", replicated {}), at("layers.*.down", rowwise { input = replicate }))").empty());
  // In one layer alone, beside layers that have the partner.
  CHECK(Raised(kMlp,
               R"(at("layers.0.up", replicated {}), at("layers.1.up", colwise {}), at("layers.*.down", rowwise {}))") ==
        Raises{"MS0314 layers.0.down"});
  CHECK(
      Raised(kMlp,
             R"(at("layers.*.up", colwise {}), at("layers.0.down", rowwise {}), at("layers.1.down", replicated {}))") ==
      Raises{"MS0313 layers.1.up"});
  CHECK(
      Raised(kMlp, R"(at("layers.0.*", replicated {}), at("layers.1.up", colwise {}), at("layers.1.down", rowwise {}))")
          .empty());
  // Both cut the same way, which the numbers of their features give away, whatever else the layer holds.
  const std::string rest =
      "layers.{0..1}.attn.q Linear weight:float32[64, 64]\nlayers.{0..1}.attn.o Linear weight:float32[64, 64]\n";
  const std::string attn = R"(at("layers.*.attn.q", colwise {}), at("layers.*.attn.o", rowwise {}), )";
  const std::string nested =
      "layers.{0..1}.mlp.up Linear weight:float32[256, 64]\nlayers.{0..1}.mlp.down Linear weight:float32[64, 256]\n";
  CHECK(Raised(nested + rest, attn + R"(at("layers.*.mlp.*", colwise {}))") == Raises{"MS0313 layers.0.mlp.up"});
  CHECK(Raised(nested + rest, attn + R"(at("layers.*.mlp.*", rowwise {}))") == Raises{"MS0314 layers.0.mlp.down"});
  // On one rank nothing is in shards.
  CHECK(Raised(kMlp, R"(at("layers.*.up", colwise {}), at("layers.*.down", replicated {}))", "tp=1").empty());
}

// The residual block of a UNet: the step's embedding is added to channels of which the convolutions leave and take
// shards.
TEST_CASE("shards of channels are partners of shards of features") {
  const std::string block =
      "blocks.{0..1}.conv1 Conv2d weight:float32[64, 64, 3, 3]\n"
      "blocks.{0..1}.conv2 Conv2d weight:float32[64, 64, 3, 3]\n"
      "blocks.{0..1}.time Linear weight:float32[64, 16]\n";
  const std::string time = R"(at("blocks.*.time", colwise {}), )";
  const std::string first =
      R"(at("blocks.*.conv1", style { name = "out", params = { weight = shard(0) }, outputs = { { shard(1), shard(1) } } }), )";
  const std::string second =
      R"(at("blocks.*.conv2", style { name = "in", params = { weight = shard(1) }, inputs = { { shard(1), shard(1) } }, outputs = { { partial, replicate } } }))";
  const std::string undeclared = R"(at("blocks.*.conv2", style { name = "in", params = { weight = shard(1) } }))";
  const std::string whole = R"(at("blocks.*.conv2", replicated()))";
  CHECK(Raised(block, time + first + second).empty());
  CHECK(Raised(block, time + first + undeclared).empty());
  CHECK(Raised(block, time + R"(at("blocks.*.conv1", replicated()), )" + second).empty());
  CHECK(Raised(block, time + first + whole) == Raises{"MS0313 blocks.0.conv1"});
  CHECK(Raised(block, R"(at("blocks.*.{time,conv1}", replicated()), )" + second) == Raises{"MS0314 blocks.0.conv2"});
  // Of transposed convolutions the weight's dims are the other way round; a depthwise one has both.
  const std::string others =
      "b.up ConvTranspose2d weight:float32[64, 32, 3, 3]\nb.depth Conv2d weight:float32[32, 1, 3, 3]\n"
      "b.down ConvTranspose2d weight:float32[32, 64, 3, 3]\n";
  const auto weights = [](const std::string& up, const std::string& down) {
    const auto at = [](const std::string& path, const std::string& layout) {
      return R"(at(")" + path + R"(", style { name = "w", params = { weight = )" + layout + " } }), ";
    };
    return at("b.up", up) + at("b.depth", "shard(0)") + at("b.down", down);
  };
  CHECK(Raised(others, weights("shard(1)", "shard(0)")).empty());
  CHECK(Raised("b.up ConvTranspose2d weight:float32[64, 32, 3, 3]\nb.down Conv2d weight:float32[64, 32, 3, 3]\n",
               R"(at("b.up", style { name = "w", params = { weight = shard(1) } }), at("b.down", replicated()))") ==
        Raises{"MS0313 b.up"});
}

TEST_CASE("a block is the smallest part of the tree with another matrix") {
  // The partner is wrapped one deeper, and norms are no matrices.
  const std::string nested =
      "layers.0.up.inner Linear weight:float32[256, 64]\n"
      "layers.0.up.norm Norm weight:float32[256]\n"
      "layers.0.out.0 Linear weight:float32[64, 256]\n";
  CHECK(Raised(nested,
               R"(at("layers.0.up.inner", colwise {}), at("layers.0.up.norm", style { params = { weight = shard(0) } }),
                          at("layers.0.out.0", rowwise {}))")
            .empty());
  // The modules of a sequence are partners, in a layer or not.
  const std::string merger =
      "visual.patches Linear weight:float32[32, 48]\n"
      "visual.merger.0 Linear weight:float32[256, 64]\n"
      "visual.merger.2 Linear weight:float32[64, 256]\n";
  const std::string up = R"(default(replicated()), at("visual.merger.0", colwise {}), )";
  CHECK(Raised(merger, up + R"(at("visual.merger.2", rowwise {}))").empty());
  CHECK(Raised(merger, up + R"(at("visual.merger.2", replicated()))") == Raises{"MS0313 visual.merger.0"});
  // The partner of another block is none.
  const std::string two =
      "layers.0.attn.q Linear weight:float32[64, 64]\n"
      "layers.0.attn.o Linear weight:float32[64, 64]\n"
      "layers.0.mlp.up Linear weight:float32[256, 64]\n"
      "layers.0.mlp.down Linear weight:float32[64, 256]\n";
  CHECK(Raised(two, R"(at("layers.0.attn.q", colwise {}), at("layers.0.attn.o", replicated {}),
                       at("layers.0.mlp.up", colwise {}), at("layers.0.mlp.down", rowwise {}))") ==
        Raises{"MS0313 layers.0.attn.q"});
  // A head's shards are taken by the loss.
  CHECK(Raised(two + "lm_head Linear weight:float32[331, 64]",
               R"(at("layers.0.{attn.q,mlp.up}", colwise {}), at("layers.0.{attn.o,mlp.down}", rowwise {}),
                  at("lm_head", colwise {}))")
            .empty());
}

TEST_CASE("what only headers do not know is not suspected") {
  const std::string tree = "(headers)\n" + kMlp;
  CHECK(Raised(tree, R"(at("layers.*.up", colwise {}), at("layers.*.down", rowwise { output = partial }))") ==
        Raises{"MS0315 layers.0.down"});
  CHECK(Raised(tree, R"(at("layers.*.up", colwise {}), at("layers.*.down", rowwise { output = partial }),
                        at("layers.*.block", prepare_output { { partial, replicate } }))")
            .empty());
}

TEST_CASE("terms are added up by the module, by one around it, or not at all") {
  const std::string tree = "layers.{0..1} Block\n" + kMlp;
  const std::string up = R"(at("layers.*.up", colwise {}), )";
  CHECK(Raised(tree, up + R"(at("layers.*.down", rowwise { output = partial }))") == Raises{"MS0315 layers.0.down"});
  CHECK(Raised(tree, up + R"(at("layers.*.down", rowwise { output = partial }),
                             at("layers.*", prepare_output { { partial, replicate } }))")
            .empty());
  CHECK(Raised(tree, up + R"(at("layers.*.down", style { params = { weight = shard(1) } }))") ==
        Raises{"MS0315 layers.0.down"});
}

TEST_CASE("an input layout declared for a norm is that of the modules beside it") {
  const std::string tree =
      "layers.{0..1}.norm Norm weight:float32[64]\n"
      "layers.{0..1}.mlp.up Linear weight:float32[256, 64]\n"
      "layers.{0..1}.mlp.norm Norm weight:float32[64]\n"
      "layers.{0..1}.mlp.down Linear weight:float32[64, 256]\n";
  const auto raised = [&](const std::string& stream, const std::string& norm) {
    return Raised(tree, R"(at("layers.*.mlp.up", colwise { input = )" + stream +
                            R"( }), at("layers.*.mlp.down", rowwise { output = )" + stream +
                            R"( }), at("layers.*.mlp.norm", replicated()), at("layers.*.norm", )" + norm + ")");
  };
  CHECK(raised("replicate", "norm_on(replicate)").empty());
  CHECK(raised("shard(1)", "norm_on(shard(1))").empty());
  CHECK(raised("shard(1)", "norm_on(replicate)") == Raises{"MS0316 layers.0.norm"});
  CHECK(raised("shard(1)", "replicated()") == Raises{"MS0316 layers.0.norm"});
  CHECK(raised("replicate", "norm_on(shard(1))") == Raises{"MS0316 layers.0.norm"});
  CHECK(raised("replicate", "sequence_parallel { output = replicate }").empty());
  CHECK(raised("shard(1)", "style { params = { weight = shared } }").empty());
}

TEST_CASE("a norm of channels is not one of the stream: tensor dim 1 is not the sequence") {
  const auto raised = [](const std::string& kind) {
    return Raised("blocks.{0..1}.norm " + kind +
                      " weight:float32[64] bias:float32[64]\n"
                      "blocks.{0..1}.mix.up Linear weight:float32[256, 64]\n"
                      "blocks.{0..1}.mix.down Linear weight:float32[64, 256]\n",
                  R"(at("blocks.*.mix.up", colwise {}), at("blocks.*.mix.down", rowwise {}),
                     at("blocks.*.norm", style { params = { ["*"] = shard(0) }, inputs = { { shard(1), shard(1) } },
                                                 outputs = { { shard(1), shard(1) } } }))");
  };
  for (const std::string kind : {"GroupNorm", "BatchNorm2d", "InstanceNorm1d"}) {
    INFO(kind);
    CHECK(raised(kind).empty());
  }
  CHECK(raised("LayerNorm") == Raises{"MS0316 blocks.0.norm"});
}

TEST_CASE("norms that only the default or nobody claims") {
  const std::string tree =
      "layers.{0..1} Block\n"
      "layers.{0..1}.norm Norm weight:float32[64]\n"
      "layers.{0..1}.mlp.up Linear weight:float32[256, 64]\n"
      "layers.{0..1}.mlp.down Linear weight:float32[64, 256]\n"
      "layers.{0..1}.inner Block\n"
      "layers.{0..1}.inner.norm Norm weight:float32[64]\n";
  const std::string sequence =
      R"(at("layers.*.mlp.up", colwise { input = shard(1) }), at("layers.*.mlp.down", rowwise { output = shard(1) }), )";
  const std::string full = R"(at("layers.*.mlp.up", colwise {}), at("layers.*.mlp.down", rowwise {}), )";
  const std::string inner = R"(at("layers.*.inner.norm", replicated()), )";
  CHECK(Raised(tree, sequence + inner + "default(replicated())") == Raises{"MS0316 layers.0.norm"});
  CHECK(Raised(tree, sequence + inner) == Raises{"MS0316 layers.0.norm"});
  CHECK(Raised(tree, sequence + inner + "default(replicated())", "tp=1").empty());
  CHECK(Raised(tree, full + "default(replicated())").empty());
  CHECK(Raised(tree, sequence + inner + R"(at("layers.*.norm", norm_on(shard(1))), default(replicated()))").empty());
  // What is within a module that gathers the sequence has it whole; what is around it has not.
  const std::string gathered = R"(at("layers.*.inner", prepare_input { { shard(1), replicate } }),
                                  at("layers.*.norm", norm_on(shard(1))), default(replicated()))";
  CHECK(Raised(tree, sequence + gathered).empty());
}

TEST_CASE("large is 64 MiB, and what a rule says is said") {
  const std::string tree =
      kMlp + "small Linear weight:bfloat16[4096, 8191]\nlarge Linear weight:bfloat16[4096, 8192]\n";
  const std::string rules = R"(at("layers.*.up", colwise {}), at("layers.*.down", rowwise {}), )";
  CHECK(Raised(tree, rules + "default(replicated())") == Raises{"MS0209 large.weight"});
  CHECK(Raised(tree, rules) == Raises{"MS0209 large.weight"});
  CHECK(Raised(tree, rules + R"(at("{small,large}", replicated()))").empty());
  CHECK(Raised(tree, rules + R"(default(replicated()), fsdp { wrap = "layers.*.up" })", "tp=2,dp=2").empty());
}

TEST_CASE("a cut pays from six multiplications an element") {
  // colwise with its output gathered sends 2 * 64 elements backward and one per row forward.
  const auto tree = [](int rows) {
    return kMlp + "layers.{0..1}.gate Linear weight:float32[" + std::to_string(rows) + ", 64]\n";
  };
  const std::string rules =
      R"(at("layers.*.up", colwise {}), at("layers.*.down", rowwise {}), at("layers.*.gate", style { name = "gate",
         params = { weight = shard(0) }, inputs = { { partial, shared } }, outputs = { { shard(-1), replicate } } }))";
  // partial -> shared is an all-reduce each way: 4 * 64 + rows elements for 64 * rows multiplications.
  CHECK(Raised(tree(26), rules) == Raises{"MS0317 layers.0.gate"});
  CHECK(Raised(tree(27), rules).empty());
}

TEST_CASE("features that are gathered are not cut again") {
  CHECK(
      Raised(
          kMlp,
          R"(at("layers.*.up", colwise { output = replicate }), at("layers.*.down", rowwise { input = replicate }))") ==
      Raises{"MS0317 layers.0.up"});
  CHECK(
      Raised(kMlp, R"(at("layers.*.up", colwise { output = replicate }), at("layers.*.down", replicated {}))").empty());
}

TEST_CASE("shards of queries, keys and the block's end") {
  const auto raised = [](const std::string& q, const std::string& kv, const std::string& mesh,
                         const std::string& end = "rowwise {}") {
    return Raised(
        "layers.{0..1}.q_proj Linear weight:float32[64, 64]\n"
        "layers.{0..1}.k_proj Linear weight:float32[32, 64]\n"
        "layers.{0..1}.v_proj Linear weight:float32[32, 64]\n"
        "layers.{0..1}.o_proj Linear weight:float32[64, 64]\n",
        R"(at("layers.*.q_proj", colwise { )" + q + R"( }), at("layers.*.{k,v}_proj", colwise { )" + kv +
            R"( }), at("layers.*.o_proj", )" + end + ")",
        mesh);
  };
  CHECK(raised("heads = 8", "heads = 4", "tp=8").empty());
  CHECK(raised("heads = 8", "heads = 8", "tp=8") == Raises{"MS0304 layers.0.k_proj"});
  CHECK(raised("heads = 8", "", "tp=8") == Raises{"MS0304 layers.0.k_proj"});
  CHECK(raised("heads = 8", "", "tp=4").empty());
  CHECK(raised("", "", "tp=8").empty());
  CHECK(raised("heads = 8", "heads = 4", "tp=16") == Raises{"MS0304 layers.0.q_proj"});
  CHECK(raised("heads = 8", "heads = 4", "tp=8", "colwise { input = shard(-1), output = replicate }").empty());
  CHECK(raised("heads = 8", "heads = 4", "tp=16", "colwise { input = shard(-1), output = replicate }") ==
        Raises{"MS0304 layers.0.q_proj"});
}

TEST_CASE("blocks take and leave the stream as the norms have it") {
  const std::string tree =
      "embed Embedding weight:float32[100, 64]\n"
      "layers.{0..1}.norm Norm weight:float32[64]\n"
      "layers.{0..1}.attn.q_proj Linear weight:float32[64, 64]\n"
      "layers.{0..1}.attn.o_proj Linear weight:float32[64, 64]\n"
      "layers.{0..1}.mlp Block\n"
      "layers.{0..1}.mlp.up Linear weight:float32[256, 64]\n"
      "layers.{0..1}.mlp.down Linear weight:float32[64, 256]\n";
  const auto raised = [&](const std::string& stream, const std::string& up, const std::string& down,
                          const std::string& more = "") {
    return Raised(tree, R"(at("embed", vocab_rowwise { output = )" + stream + R"( }),
                           at("layers.*.norm", norm_on()" +
                            stream + R"()),
                           at("layers.*.attn.q_proj", colwise { input = )" +
                            stream + R"( }),
                           at("layers.*.attn.o_proj", rowwise { output = )" +
                            stream + R"( }),
                           at("layers.*.mlp.up", )" +
                            up + R"(), at("layers.*.mlp.down", )" + down + ")," + more);
  };
  CHECK(raised("replicate", "colwise {}", "rowwise {}").empty());
  CHECK(raised("shard(1)", "colwise { input = shard(1) }", "rowwise { output = shard(1) }").empty());
  CHECK(raised("shard(1)", "colwise { input = shard(1) }", "rowwise {}") == Raises{"MS0314 layers.0.mlp.down"});
  CHECK(raised("shard(1)", "colwise {}", "rowwise { output = shard(1) }") == Raises{"MS0313 layers.0.mlp.up"});
  CHECK(raised("replicate", "colwise {}", "rowwise { output = shard(1) }") == Raises{"MS0313 layers.0.mlp.down"});
  CHECK(raised("replicate", "colwise { input = shard(1) }", "rowwise {}") == Raises{"MS0314 layers.0.mlp.up"});
  CHECK(raised("replicate", "colwise { input = shard(-1) }", "rowwise {}") == Raises{"MS0314 layers.0.mlp.up"});
  CHECK(raised("replicate", "colwise {}", "rowwise { output = shard(3) }") == Raises{"MS0303 layers.0.mlp.down"});
  // Every rank makes whole dot products: features are gathered in front of the block's end.
  CHECK(raised("replicate", "colwise {}", "colwise { input = shard(-1), output = replicate }").empty());
  // The module around takes it up in shards and leaves it so.
  CHECK(
      raised(
          "shard(1)", "colwise {}", "rowwise {}",
          R"(at("layers.*.mlp", style { inputs = { { shard(1), replicate } }, outputs = { { replicate, shard(1) } } }))")
          .empty());
  // A tree from headers may not know it.
  CHECK(Raised("(headers)\nlayers.{0..1}.norm Norm weight:float32[64]\n"
               "layers.{0..1}.mlp.up Linear weight:float32[256, 64]\n"
               "layers.{0..1}.mlp.down Linear weight:float32[64, 256]\n",
               R"(at("layers.*.norm", norm_on(shard(1))), at("layers.*.mlp.up", colwise {}),
                  at("layers.*.mlp.down", rowwise {}), at("layers.*.mlp",
                  style { inputs = { { shard(1), replicate } }, outputs = { { replicate, shard(1) } } }))")
            .empty());
}

TEST_CASE("the embedding and the head have the stream as the layers have it") {
  const std::string tree =
      "model Model\n"
      "model.embed Embedding weight:float32[64, 64]\n"  // as many words as features
      "model.layers.{0..1} Block\n"
      "model.layers.{0..1}.norm Norm weight:float32[64]\n"
      "model.layers.{0..1}.mlp.up Linear weight:float32[256, 64]\n"
      "model.layers.{0..1}.mlp.down Linear weight:float32[64, 256]\n"
      "model.norm Norm weight:float32[64]\n"
      "head Linear weight:float32[64, 64]\n";
  const auto raised = [&](const std::string& stream, const std::string& embed, const std::string& head,
                          const std::string& more = "", const std::string& more_tree = "") {
    return Raised(tree + more_tree, R"(at("model.layers.*.mlp.up", colwise { input = )" + stream +
                                        R"( }), at("model.layers.*.mlp.down", rowwise { output = )" + stream +
                                        R"( }), at("model.{layers.*.,}norm", norm_on()" + stream +
                                        R"()), at("model.embed", )" + embed + R"(), at("head", colwise { input = )" +
                                        head + R"( }),)" + more);
  };
  CHECK(raised("replicate", "vocab_rowwise {}", "replicate").empty());
  CHECK(raised("shard(1)", "vocab_rowwise { output = shard(1) }", "shard(1)").empty());
  CHECK(raised("shard(1)", "colwise { output = shard(1) }", "shard(1)").empty());
  CHECK(raised("replicate", "colwise { output = replicate }", "replicate").empty());
  CHECK(raised("replicate", "colwise {}", "replicate") == Raises{"MS0313 model.embed"});
  CHECK(raised("shard(1)", "vocab_rowwise {}", "shard(1)") == Raises{"MS0314 model.embed"});
  CHECK(raised("replicate", "vocab_rowwise { output = shard(1) }", "replicate") ==
        Raises{"MS0313 model.embed", "MS0316 model.norm"});
  CHECK(raised("shard(1)", "vocab_rowwise { output = shard(1) }", "replicate") == Raises{"MS0313 head"});
  CHECK(raised("replicate", "vocab_rowwise {}", "shard(1)") == Raises{"MS0314 head"});
  // What is between may move it.
  CHECK(raised("replicate", "colwise {}", "replicate",
               R"(at("model.layers.0", prepare_input { { shard(-1), replicate } }))")
            .empty());
  CHECK(raised("shard(1)", "vocab_rowwise {}", "shard(1)",
               R"(at("model.layers.0", prepare_input { { replicate, shard(1) } }))")
            .empty());
  CHECK(raised("shard(1)", "vocab_rowwise {}", "shard(1)", R"(at("model.project", replicated { output = shard(1) }))",
               "model.project Linear weight:float32[64, 64]\n")
            .empty());
  CHECK(raised("shard(1)", "vocab_rowwise { output = shard(1) }", "replicate",
               R"(at("model", prepare_output { { shard(1), replicate } }))")
            .empty());
}

TEST_CASE("components of paths") {
  CHECK(InList("layers.0.mlp"));
  CHECK(InList("0"));
  CHECK_FALSE(InList("layers.mlp"));
  CHECK_FALSE(InList("layer0.mlp"));
  CHECK_FALSE(InList(""));
}

// Attention of 8 query heads with features of 8, in layers whose key projections have `keys` heads.
std::string AttentionTree(int64_t keys) {
  const std::string rows = std::to_string(8 * keys);
  return "layers.{0..1}.attn.q_proj Linear weight:float32[64, 64]\n"
         "layers.{0..1}.attn.k_proj Linear weight:float32[" +
         rows +
         ", 64]\n"
         "layers.{0..1}.attn.v_proj Linear weight:float32[" +
         rows +
         ", 64]\n"
         "layers.{0..1}.attn.o_proj Linear weight:float32[64, 64]\n";
}

std::string ConfigOf(int64_t keys) {
  return R"({"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": )" + std::to_string(keys) + "}";
}

// q and o with `queries` heads, k and v with `keys`; 0: none is declared.
std::string AttentionRules(int64_t queries, int64_t keys) {
  const auto heads = [](int64_t count) { return count == 0 ? "{}" : "{ heads = " + std::to_string(count) + " }"; };
  return R"(at("layers.*.attn.q_proj", colwise )" + heads(queries) + R"(), at("layers.*.attn.{k,v}_proj", colwise )" +
         heads(keys) + R"(), at("layers.*.attn.o_proj", rowwise {}))";
}

TEST_CASE("heads that a plan declares are compared with the config's") {
  const Raises wrong = {"MS0304 layers.0.attn.k_proj"};
  struct Row {
    int64_t declared;
    int64_t tp;
    bool right;
  };
  // 4 key heads; 2 on 2 ranks are two heads each, which are the rank's own.
  for (const Row& row : {Row{4, 2, true}, Row{4, 4, true}, Row{4, 8, true}, Row{2, 2, true}, Row{2, 4, false},
                         Row{2, 8, false}, Row{1, 2, false}, Row{1, 4, false}, Row{8, 4, true}, Row{8, 8, false}}) {
    for (int64_t queries : {0, 8}) {
      INFO(row.declared << " heads, tp=" << row.tp << ", " << queries << " query heads");
      CHECK(Raised(AttentionTree(4), AttentionRules(queries, row.declared), "tp=" + std::to_string(row.tp),
                   ConfigOf(4)) == (row.right ? Raises{} : wrong));
    }
  }
  // Without a reading, as without a config, only what the plan itself contradicts.
  CHECK(Raised(AttentionTree(4), AttentionRules(8, 2), "tp=4").empty());
  CHECK(Raised(AttentionTree(4), AttentionRules(8, 2), "tp=4", ConfigOf(2)).empty());
  CHECK(Raised(AttentionTree(4), AttentionRules(8, 2), "tp=4",
               R"({"text_config": )" + ConfigOf(4) + R"(, "vision_config": {"hidden_size": 64, "num_attention_heads": 4,
                "head_dim": 16, "num_key_value_heads": 2}})")
            .empty());
  CHECK(Raised(AttentionTree(4), AttentionRules(8, 2), "tp=4",
               R"({"text_config": )" + ConfigOf(4) + R"(, "vision_config": {"hidden_size": 48,
                "num_attention_heads": 4}})") == wrong);
}

TEST_CASE("the config's heads are known by the names of any family, and so are the projections") {
  struct Row {
    const char* query;
    const char* key;
    const char* value;
    const char* config;
    bool known = true;
  };
  // 8 query heads of 8 features, 4 key heads, declared as 2 on 4 ranks.
  const std::vector<Row> rows = {
      {"q", "k", "v", R"({"d_model": 64, "num_heads": 8, "num_kv_heads": 4, "d_kv": 8})"},
      {"wq", "wk", "wv", R"({"dim": 64, "n_heads": 8, "n_kv_heads": 4})"},
      {"q_lin", "k_lin", "v_lin", R"({"dim": 64, "n_heads": 8, "num_key_value_heads": 4})"},
      {"query", "key", "value", R"({"n_embd": 64, "n_head": 8, "n_head_kv": 4})"},
      {"query_proj", "key_proj", "value_proj", R"({"hidden_size": 64, "num_attention_heads": 8, "num_query_groups": 4,
                                                   "kv_channels": 8})"},
      // One number for each layer, other sizes, two numbers that both fit: nothing is said.
      {"q", "k", "v", R"({"d_model": 64, "num_heads": 8, "num_kv_heads": [4, 4]})", false},
      {"q", "k", "v", R"({"d_model": 64, "num_heads": 8, "num_kv_heads": 4, "d_kv": 16})", false},
      {"q", "k", "v", R"({"d_model": 64, "encoder_attention_heads": 8, "decoder_attention_heads": 4, "num_kv_heads": 4,
                          "n_kv_heads": 2, "d_kv": 8, "head_dim": 16})",
       false},
  };
  for (const Row& row : rows) {
    const std::string config = row.config;
    INFO(row.query << " of " << config);
    const auto path = [](const std::string& name) { return "layers.{0..1}.attn." + name; };
    const std::string tree = path(row.query) + " Linear weight:float32[64, 64]\n" + path(row.key) +
                             " Linear weight:float32[32, 64]\n" + path(row.value) + " Linear weight:float32[32, 64]\n" +
                             path("o") + " Linear weight:float32[64, 64]\n";
    const auto rules = [&](int64_t keys) {
      return R"(at("layers.*.attn.)" + std::string(row.query) + R"(", colwise {}), at("layers.*.attn.{)" + row.key +
             "," + row.value + R"(}", colwise { heads = )" + std::to_string(keys) +
             R"( }), at("layers.*.attn.o", rowwise {}))";
    };
    CHECK(Raised(tree, rules(2), "tp=4", config) ==
          (row.known ? Raises{"MS0304 layers.0.attn." + std::string(row.key)} : Raises{}));
    CHECK(Raised(tree, rules(4), "tp=4", config).empty());
  }
}

TEST_CASE("a fused projection under other families' names") {
  for (const std::string name : {"query_key_value", "c_attn", "linear_qkv", "Wqkv"}) {
    INFO(name);
    const std::string tree =
        "h.0.attn." + name + " Linear weight:float32[128, 64]\nh.0.attn.dense Linear weight:float32[64, 64]\n";
    const auto raised = [&](const std::string& parts) {
      return Raised(tree,
                    R"(at("h.*.attn.)" + name + R"(", style { params = { weight = packed(0, )" + parts +
                        R"() }, inputs = { { replicate, shared } }, outputs = { { packed(-1, )" + parts +
                        R"(), packed(-1, )" + parts + R"() } } }), at("h.*.attn.dense", rowwise {}))",
                    "tp=2", R"({"n_embd": 64, "n_head": 8, "num_kv_heads": 4})");
    };
    CHECK(raised("{ 64, 32, 32 }").empty());
    CHECK(raised("{ 32, 64, 32 }") == Raises{"MS0304 h.0.attn." + name});
  }
}

TEST_CASE("a reading of the config is for projections of the stream's size") {
  // A tower whose fused projection has as many features as the text model's would have.
  CHECK(Raised("visual.attn.qkv Linear weight:float32[192, 64]\n",
               R"(at("visual.attn.qkv", style { params = { weight = packed(0, 3) }, inputs = { { replicate, shared } },
      outputs = { { packed(-1, 3), packed(-1, 3) } } }))",
               "tp=2", R"({"hidden_size": 128, "head_dim": 8, "num_attention_heads": 16, "num_key_value_heads": 4})")
            .count("MS0304 visual.attn.qkv") == 0);
}

TEST_CASE("queries that carry a gate have keys of half their size") {
  const std::string tree =
      "layers.{0..1}.attn.q_proj Linear weight:float32[128, 64]\n"
      "layers.{0..1}.attn.k_proj Linear weight:float32[32, 64]\n"
      "layers.{0..1}.attn.v_proj Linear weight:float32[32, 64]\n"
      "layers.{0..1}.attn.o_proj Linear weight:float32[64, 64]\n";
  CHECK(Raised(tree, AttentionRules(8, 4), "tp=4", ConfigOf(4)).empty());
  CHECK(Raised(tree, AttentionRules(8, 2), "tp=4", ConfigOf(4)) == Raises{"MS0304 layers.0.attn.k_proj"});
}

TEST_CASE("unusual layouts of heads are right where every query meets its own key") {
  const std::string packed = R"(style { params = { weight = packed(0, 2) }, inputs = { { replicate, shared } },
    outputs = { { packed(-1, 2), packed(-1, 2) } } })";
  const std::string out = R"(style { params = { weight = packed(1, 2) }, inputs = { { packed(-1, 2), packed(-1, 2) } },
    outputs = { { partial, replicate } } })";
  const std::string all = R"(at("layers.*.attn.{q,k,v}_proj", )" + packed + R"(), at("layers.*.attn.o_proj", )";
  CHECK(Raised(AttentionTree(4), all + out + ")", "tp=2", ConfigOf(4)).empty());
  CHECK(Raised(AttentionTree(4), all + "rowwise {})", "tp=2", ConfigOf(4)) == Raises{"MS0320 layers.0.attn.q_proj"});
  const std::string queries = R"(at("layers.*.attn.q_proj", )" + packed + R"(), at("layers.*.attn.o_proj", )" + out +
                              R"(), at("layers.*.attn.{k,v}_proj", colwise {}))";
  CHECK(Raised(AttentionTree(4), queries, "tp=2", ConfigOf(4)) == Raises{"MS0304 layers.0.attn.q_proj"});
}

TEST_CASE("a fused projection is in shards of queries, keys and values") {
  const std::string tree =
      "layers.0.attn.qkv_proj Linear weight:float32[128, 64]\n"
      "layers.0.attn.o_proj Linear weight:float32[64, 64]\n";
  const auto raised = [&](const std::string& parts) {
    return Raised(tree,
                  R"(at("layers.*.attn.qkv_proj", style { params = { weight = packed(0, )" + parts +
                      R"() }, inputs = { { replicate, shared } }, outputs = { { packed(-1, )" + parts +
                      R"(), packed(-1, )" + parts + R"() } } }), at("layers.*.attn.o_proj", rowwise {}))",
                  "tp=2", ConfigOf(4));
  };
  CHECK(raised("{ 64, 32, 32 }").empty());
  CHECK(raised("2").empty());  // full groups of a key head, its queries and its value, where these are stored together
  for (const std::string parts : {"4", "{ 32, 64, 32 }", "{ 60, 36, 32 }"}) {
    INFO(parts);
    CHECK(raised(parts) == Raises{"MS0304 layers.0.attn.qkv_proj"});
  }
  CHECK(Raised(tree, R"(at("layers.*.attn.qkv_proj", colwise { heads = 4 }), at("layers.*.attn.o_proj", rowwise {}))",
               "tp=4", ConfigOf(4))
            .empty());
}

TEST_CASE("gate and up leave the features that down takes") {
  const std::string tree =
      "layers.{0..1}.mlp.gate_proj Linear weight:float32[96, 64]\n"
      "layers.{0..1}.mlp.up_proj Linear weight:float32[96, 64]\n"
      "layers.{0..1}.mlp.down_proj Linear weight:float32[64, 96]\n";
  const auto made = [](const std::string& layers, const std::string& names, const std::string& sizes) {
    return R"(at("layers.)" + layers + ".mlp." + names + R"(_proj", style { params = { weight = packed(0, )" + sizes +
           R"() }, inputs = { { replicate, shared } }, outputs = { { packed(-1, )" + sizes + R"(), packed(-1, )" +
           sizes + R"() } } }))";
  };
  const auto taken = [](const std::string& layers, const std::string& sizes) {
    return R"(at("layers.)" + layers + R"(.mlp.down_proj", style { params = { weight = packed(1, )" + sizes +
           R"() }, inputs = { { packed(-1, )" + sizes + R"(), packed(-1, )" + sizes +
           R"() } }, outputs = { { partial, replicate } } }))";
  };
  CHECK(Raised(tree, made("*", "{gate,up}", "2") + ", " + taken("*", "2")).empty());
  CHECK(Raised(tree, made("*", "gate", "2") +
                         R"(, at("layers.*.mlp.up_proj", colwise {}), at("layers.*.mlp.down_proj", rowwise {}))") ==
        Raises{"MS0320 layers.0.mlp.gate_proj"});
  CHECK(Raised(tree, made("*", "up", "2") +
                         R"(, at("layers.*.mlp.gate_proj", colwise {}), at("layers.*.mlp.down_proj", rowwise {}))") ==
        Raises{"MS0320 layers.0.mlp.up_proj"});
  CHECK(Raised(tree, R"(at("layers.*.mlp.{gate,up}_proj", colwise {}), )" + taken("*", "2")) ==
        Raises{"MS0320 layers.0.mlp.gate_proj"});
  CHECK(Raised(tree, made("*", "{gate,up}", "3") + ", " + taken("*", "2")) == Raises{"MS0320 layers.0.mlp.gate_proj"});
  // Layers that differ, each right in itself.
  CHECK(Raised(tree, made("0", "{gate,up}", "2") + ", " + taken("0", "2") +
                         R"(, at("layers.1.mlp.{gate,up}_proj", colwise {}), at("layers.1.mlp.down_proj", rowwise {}))")
            .empty());
}

TEST_CASE("gate and up in one weight stand one after the other where it is cut in parts, else perhaps side by side") {
  const std::string tree =
      "layers.{0..1}.mlp.gate_up_proj Linear weight:float32[192, 64]\n"
      "layers.{0..1}.mlp.down_proj Linear weight:float32[64, 96]\n";
  const auto raised = [&](const std::string& rows, const std::string& features, const std::string& columns,
                          const std::string& arriving) {
    return Raised(tree, R"(at("layers.*.mlp.gate_up_proj", style { params = { weight = )" + rows +
                            R"( }, inputs = { { replicate, shared } }, outputs = { { )" + features + ", " + features +
                            R"( } } }), at("layers.*.mlp.down_proj", style { params = { weight = )" + columns +
                            R"( }, inputs = { { )" + arriving + ", " + arriving +
                            R"( } }, outputs = { { partial, replicate } } }))");
  };
  CHECK(raised("packed(0, 2)", "packed(-1, 2)", "shard(1)", "shard(-1)").empty());
  // A fused weight cut as a plain one is another finding; its order may be right.
  CHECK(raised("shard(0)", "shard(-1)", "shard(1)", "shard(-1)") == Raises{"MS0312"});
  const Raises found = {"MS0320 layers.0.mlp.gate_up_proj"};
  CHECK(raised("packed(0, 2)", "packed(-1, 2)", "packed(1, 2)", "packed(-1, 2)") == found);
  CHECK(raised("packed(0, 4)", "packed(-1, 4)", "shard(1)", "shard(-1)") == found);
}

TEST_CASE("what is redistributed is declared as the weight has it") {
  const std::string tree = "layers.{0..1}.up Linear weight:float32[96, 64]\n";
  const auto raised = [&](const std::string& from, const std::string& to) {
    return Raised(tree, R"(at("layers.*.up", style { params = { weight = packed(0, 2) },
      inputs = { { replicate, shared } }, outputs = { { )" +
                            from + ", " + to + " } } })");
  };
  CHECK(raised("packed(-1, 2)", "replicate").empty());
  CHECK(raised("shard(-1)", "replicate") == Raises{"MS0320 layers.0.up"});
}

}  // namespace
}  // namespace moonshard

// Which suspicions a plan raises, and which it does not. Their texts are goldens in tests/cases/mistakes and engine/core/findings/pages;
// that no shipped plan raises one is tests/cases/families.
#include <catch2/catch.hpp>
#include <set>

#include "engine/plan/lint/flow.h"
#include "tests/support/plan_case.h"

namespace moonshard {
namespace {

const std::set<std::string> kSuspicions = {"MS0209", "MS0303", "MS0304", "MS0313",
                                           "MS0314", "MS0315", "MS0316", "MS0317"};

// The suspicions about a plan, each with the path of the module; an error of another kind as its identifier.
std::multiset<std::string> Raised(const std::string& tree, const std::string& rules, const std::string& mesh = "tp=2") {
  PlanCase plan_case;
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

TEST_CASE("norms are told what their neighbours are told") {
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
  // colwise with its output gathered sends 2 * 64 elements backward and one a row forward.
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

}  // namespace
}  // namespace moonshard

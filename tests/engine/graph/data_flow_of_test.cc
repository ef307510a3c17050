// Which module feeds which, of the recorded programs.
#include "engine/graph/data_flow_of.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "engine/io/exported_program/program_archive.h"
#include "tests/support/paths.h"

namespace moonshard::test {
namespace {

DataFlow FlowOf(const std::string& model) {
  const ProgramArchive archive = ProgramArchive::Open(SourcePath("tests/parity/") + model + ".pt2").ValueOrThrow();
  return DataFlowOf(ReadProgram(archive).ValueOrThrow());
}

std::set<std::string> Texts(const DataFlow& flow, const std::vector<FlowEdge>& edges) {
  std::set<std::string> out;
  for (const FlowEdge& edge : edges) {
    out.insert(flow.FromText(edge) + " -> " + flow.ToText(edge) + ", " + BetweenText(edge.between));
  }
  return out;
}

TEST_CASE("the data flow of a small program") {
  CHECK(FlowOf("fixed_sizes/none").ToText() ==
        "input x -> q:0  nothing\n"
        "input x -> k:0  nothing\n"
        "q:0 -> out:0  elementwise\n"
        "k:0 -> out:0  elementwise\n"
        "out:0 -> output output  nothing\n");
  CHECK(FlowOf("fixed_sizes/stack").ToText() ==
        "input x -> q:0  nothing\n"
        "input x -> k:0  nothing\n"
        "q:0 -> out:0  reshape, other\n"
        "k:0 -> out:0  reshape, other\n"
        "out:0 -> output output  nothing\n");
  // Of two branches, each with one of them.
  CHECK(FlowOf("fixed_sizes/branch").ToText() ==
        "input x -> q:0  nothing\n"
        "input x -> k:0  nothing\n"
        "q:0 -> out:0  nothing\n"
        "k:0 -> out:0  nothing\n"
        "out:0 -> output output  nothing\n");
}

TEST_CASE("what feeds a module and what it feeds") {
  const DataFlow flow = FlowOf("programs/llama/program");
  const std::string layer = "model.layers.0";
  CHECK(Texts(flow, flow.Into(layer + ".self_attn.o_proj")) ==
        std::set<std::string>{
            layer + ".self_attn.k_proj:0 -> " + layer + ".self_attn.o_proj:0, elementwise, reshape, other",
            layer + ".self_attn.q_proj:0 -> " + layer + ".self_attn.o_proj:0, elementwise, reshape, other",
            layer + ".self_attn.v_proj:0 -> " + layer + ".self_attn.o_proj:0, reshape, other",
            "model.rotary_emb:0 -> " + layer + ".self_attn.o_proj:0, elementwise, reshape, other",
            "model.rotary_emb:1 -> " + layer + ".self_attn.o_proj:0, elementwise, reshape, other"});
  CHECK(Texts(flow, flow.Into(layer + ".post_attention_layernorm")) ==
        std::set<std::string>{"model.embed_tokens:0 -> " + layer + ".post_attention_layernorm:0, residual",
                              layer + ".self_attn.o_proj:0 -> " + layer + ".post_attention_layernorm:0, residual"});
  CHECK(Texts(flow, flow.OutOf(layer + ".mlp.down_proj")) ==
        std::set<std::string>{layer + ".mlp.down_proj:0 -> model.layers.1.input_layernorm:0, residual",
                              layer + ".mlp.down_proj:0 -> model.layers.1:0, residual"});
  CHECK(Texts(flow, flow.OutOf(layer + ".mlp.up_proj")) ==
        std::set<std::string>{layer + ".mlp.up_proj:0 -> " + layer + ".mlp.down_proj:0, elementwise"});
  CHECK(std::ranges::is_sorted(flow.edges, {}, [](const FlowEdge& e) { return std::pair(e.to < 0, e.to); }));
}

}  // namespace
}  // namespace moonshard::test

// What always holds for an exported program that was accepted, for the targets that read one; and some plans of it,
// compared with its graph.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/program_checks.h"
#include "engine/io/exported_program/exported_program.h"
#include "engine/plan/resolve/resolve_plan.h"
#include "tests/fuzz/target.h"

namespace moonshard::fuzz {

inline void RequireKnown(const ProgramArgument& argument, const std::vector<bool>& known) {
  if (argument.kind == ProgramArgument::Kind::kValue) {
    Require(argument.value < known.size() && known[argument.value], "a value is used before it is made");
  }
  for (const ProgramArgument& element : argument.elements) RequireKnown(element, known);
}

// Values are made once, before they are used; what has an index has one that exists.
inline void RequireConsistent(const ExportedProgram& program) {
  std::vector<bool> known(program.values.size());
  const auto make = [&](int64_t value) {
    Require(value >= 0 && static_cast<size_t>(value) < known.size(), "no such value");
    Require(!known[static_cast<size_t>(value)], "a value is made twice");
    known[static_cast<size_t>(value)] = true;
  };
  for (const ProgramInput& input : program.inputs) {
    if (input.value >= 0) make(input.value);
  }
  std::set<std::string> modules;
  for (const ExportedModule& module : program.modules) Require(modules.insert(module.path).second, "a module twice");
  const auto tensors = static_cast<int64_t>(program.tensors.size());
  for (const ProgramTensor& tensor : program.tensors) {
    if (tensor.value >= 0) make(tensor.value);
    Require(tensor.tied_to >= -1 && tensor.tied_to < tensors, "tied to no tensor");
    Require(tensor.entry.empty() || tensor.strides.size() == tensor.shape.size(), "strides of another tensor");
    Require(tensor.symbolic.empty() || tensor.symbolic.size() == tensor.shape.size(), "symbols of another tensor");
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) {
      Require(size >= 0 && !__builtin_mul_overflow(elements, size, &elements), "a shape of no tensor");
    }
  }
  int depth = 0;
  struct Open {
    int depth = 0;
    int32_t stack = -1;
    bool has_else = false;
  };
  std::vector<Open> branches;
  for (const ProgramNode& node : program.graph.nodes) {
    for (const auto& [name, argument] : node.inputs) RequireKnown(argument, known);
    for (const uint32_t value : node.outputs) {
      if (value != ProgramNode::kNoValue) make(value);
    }
    Require(node.stack >= -1 && node.stack < static_cast<int64_t>(program.stacks.size()), "no such stack");
    const bool enters =
        node.kind == ProgramNode::Kind::kEnterGradMode || node.kind == ProgramNode::Kind::kEnterAutocast;
    depth += enters ? 1 : 0;
    depth -= node.kind == ProgramNode::Kind::kLeave ? 1 : 0;
    Require(depth >= 0, "a mode is left that was not entered");
    using Kind = ProgramNode::Kind;
    if (node.kind == Kind::kBranch) branches.push_back({depth, node.stack, false});
    if (node.kind == Kind::kElse || node.kind == Kind::kJoin) {
      Require(!branches.empty() && branches.back().depth == depth, "a branch is left that was not entered");
      Require(branches.back().has_else == (node.kind == Kind::kJoin), "branches without an else, or with two");
      branches.back().has_else = true;
    }
    if (node.kind == Kind::kJoin) {
      Require(node.inputs.size() == 2 * node.outputs.size(), "branches with different numbers of results");
      branches.pop_back();
    }
    if (!branches.empty()) {
      Require(depth >= branches.back().depth, "a mode is left in a branch that did not enter it");
      const int32_t outer = branches.back().stack;
      if (outer >= 0 && node.stack >= 0) {
        const auto& out = program.stacks[static_cast<size_t>(outer)];
        const auto& in = program.stacks[static_cast<size_t>(node.stack)];
        Require(in.size() >= out.size() && std::equal(out.begin(), out.end(), in.begin()), "a branch leaves its call");
      }
    }
  }
  Require(depth == 0, "a mode is not left");
  for (const ProgramArgument& output : program.graph.outputs) RequireKnown(output, known);
  Require(program.outputs.size() == program.graph.outputs.size(), "outputs without a name");
  for (const auto& stack : program.stacks) {
    for (const ModuleCall& call : stack) Require(modules.contains(call.path), "a call of no module");
  }
  for (const RecordedCall& call : program.calls) {
    Require(modules.contains(call.module), "a call of no module");
    for (const auto* places : {&call.arguments, &call.results}) {
      for (const RecordedCall::Place& place : *places) Require(place.value < known.size(), "a place of no value");
    }
  }
  std::map<std::string, int64_t, std::less<>> sizes;
  for (const auto& [name, symbol] : program.symbols) sizes[name] = symbol.example;
  std::set<std::string> names;
  for (const SizeGuard& guard : program.guards) {
    guard.condition.Evaluate(sizes);
    guard.condition.AddSymbols(names);
  }
  Require(ProgramTree(program).modules().size() == program.modules.size(), "a tree of other modules");
}

// A plan without rules; and one in which every parameter gets one of a few placements, and every module of parameters
// one of a few outputs, as the program's own sizes decide; what is reduced gets its parameters of one dim afterwards. That the plan is refused, or its sizes are, is as good as
// that they are not.
inline void ResolveSomePlans(const ExportedProgram& program) {
  const auto shared = std::make_shared<const ExportedProgram>(program);
  auto tree = std::make_shared<ModuleTree>(ProgramTree(program));
  AddProgramKnowledge(*tree, shared);
  auto plan = std::make_shared<Plan>();
  plan->fallback.emplace();
  const auto resolve = [&](const char* mesh) {
    const Resolution done = RunPasses(plan, tree, MeshShape::Parse(mesh).ValueOrThrow());
    for (const Diagnostic& d : done.diagnostics) Require(!d.message.empty(), "a finding without a message");
  };
  resolve("tp=2");
  plan = std::make_shared<Plan>(*plan);
  for (const Module& module : tree->modules()) {
    const ModuleTree::Signature& parameters = tree->parameters(module);
    if (parameters.empty()) continue;
    Rule rule;
    rule.pattern = module.path;
    rule.style.name = "fuzzed";
    size_t choice = module.path.size();
    for (const Parameter& parameter : parameters) {
      for (const int64_t size : parameter.shape) choice += static_cast<size_t>(size);
      Placement& placement = rule.style.params[parameter.name];
      const int dim = parameter.shape.size() > 1 ? static_cast<int>(choice % 2) : 0;
      if (!parameter.shape.empty()) placement[MeshAxis::kTp] = Layout::Shard(dim, choice % 5 == 0 ? 2 : 0);
    }
    const Layout layouts[] = {Layout::Shard(-1), Layout::Partial(), Layout::Replicate()};
    if (choice % 4 < 3) {
      Redistribution output;
      output.from[MeshAxis::kTp] = layouts[choice % 4];
      output.to[MeshAxis::kTp] = choice % 8 < 4 ? Layout::Replicate() : layouts[choice % 4];
      rule.style.outputs = {output};
      const bool reduces = output.from != output.to && layouts[choice % 4] == Layout::Partial();
      for (const Parameter& parameter : parameters) {
        if (!reduces || parameter.shape.size() != 1) continue;
        rule.style.params[parameter.name] = Layout::Replicate();
        rule.style.after.push_back(parameter.name);
      }
    }
    plan->rules.push_back(std::move(rule));
  }
  for (const char* mesh : {"tp=2", "tp=4"}) resolve(mesh);
}

inline void RequireReason(const Diagnostics& diagnostics) {
  Require(HasErrors(diagnostics), "refused without an error");
  for (const Diagnostic& d : diagnostics) {
    Require(d.finding == Finding::kBadProgram && !d.message.empty() && !d.path.empty(), "refused: " + d.ToText());
  }
}

}  // namespace moonshard::fuzz

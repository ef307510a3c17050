// Plans with something else in them (mutate_plan.h), judged by everything that judges plans and by the numbers of the
// step in float64 on real ranks against one rank. A wrong plan must never be called proven, a right one never be called
// wrong.
//
//   MOONSHARD_PLANS=5000 MOONSHARD_SEED=1 test_analysis "changed plans*"     20 minutes, by hand; a minute in CI
//   MOONSHARD_FIRST=973                                                      begin there: MOONSHARD_PLANS=1 runs one
//                                                                            again
#include <catch2/catch.hpp>

#include <array>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <optional>

#include "engine/core/base/text.h"
#include "tests/engine/analysis/prove/mutate_plan.h"
#include "tests/engine/analysis/prove/planned_model.h"

namespace moonshard::test {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

struct Place {
  std::filesystem::path folder;
  int64_t heads = 0;
  std::vector<std::string> options;
  bool context = false;
};

// On a mesh with cp: a number that cp=2,tp=2 divides, also in zigzag. A rank without peers cannot ask how long other
// shards of the tokens are.
constexpr int64_t kTokensOnCp = 12;

// Every recorded checkpoint and every program with a plan.
std::vector<Place> Places() {
  std::vector<Place> out;
  std::vector<std::filesystem::path> folders = ParityFolders();
  const std::vector<std::filesystem::path> programs = PlannedPrograms();
  folders.insert(folders.end(), programs.begin(), programs.end());
  for (const std::filesystem::path& folder : folders) {
    const JsonValue config = ReadConfig(folder);
    const JsonValue* text = config.Find("text_config");
    const JsonValue& of = text != nullptr ? *text : config;
    const JsonValue* heads = of.Find("num_attention_heads");
    if (heads == nullptr) heads = of.Find("n_head");
    if (heads == nullptr) heads = of.Find("num_heads");
    std::vector<std::string> options = BooleanOptions(folder);
    // A program computes its own loss, of whole logits.
    if (std::filesystem::exists(folder / "program.pt2")) std::erase(options, "loss_parallel");
    out.push_back({folder, heads == nullptr ? 2 : heads->AsInt(), options, HasContext(folder)});
  }
  return out;
}

std::string MeshFor(PlanMutator& random, int64_t heads) {
  std::vector<std::string> meshes = {"tp=2", "tp=2", "dp=2,tp=2"};
  for (const int64_t tp : {3, 4, 8}) {
    if (heads % tp == 0) meshes.push_back("tp=" + std::to_string(tp));
  }
  if (random.Below(16) == 0) return "dp_replicate=2,tp=2";
  return meshes[random.Below(meshes.size())];
}

// Puts the model, one time in four, on a mesh with cp.
void MaybeOnCp(PlanMutator& random, const Place& place, PlannedModel& model) {
  if (!place.context || random.Below(4) > 0) return;
  constexpr std::array kContexts = {"ulysses", "ring", "plain_ring"};
  model.mesh = random.Below(2) == 0 ? "cp=2" : "cp=2,tp=2";
  model.context = kContexts[random.Below(kContexts.size())];
  model.tokens = kTokensOnCp;
}

// Who found what, of the plans that are wrong, and of those that are right.
struct Table {
  int64_t refused = 0;
  struct Column {
    int64_t plans = 0, warned = 0, faults = 0, unproven = 0, proven = 0, ops_compared = 0, ops_differ = 0;
    int64_t faults_alone = 0;  // no warning, and no operator that differs
    std::map<std::string, int64_t> by_finding;
    std::map<std::string, std::pair<int64_t, int64_t>> by_kind;  // of change: plans, faults
  };
  Column right, wrong;

  void Add(const Verdict& verdict, const std::string& kind) {
    if (verdict.refused()) {
      ++refused;
      return;
    }
    Column& at = verdict.right ? right : wrong;
    ++at.plans;
    at.warned += verdict.warnings.empty() ? 0 : 1;
    for (const std::string& id : verdict.warnings) ++at.by_finding[id];
    at.faults += verdict.proof == Verdict::Proof::kFaults ? 1 : 0;
    at.unproven += verdict.proof == Verdict::Proof::kUnproven ? 1 : 0;
    at.proven += verdict.proof == Verdict::Proof::kHolds ? 1 : 0;
    at.ops_compared += verdict.ops_agree ? 1 : 0;
    at.ops_differ += verdict.ops_agree && !*verdict.ops_agree ? 1 : 0;
    const bool alone = verdict.warnings.empty() && verdict.ops_agree.value_or(true);
    at.faults_alone += verdict.proof == Verdict::Proof::kFaults && alone ? 1 : 0;
    auto& of_kind = at.by_kind[kind];
    ++of_kind.first;
    of_kind.second += verdict.proof == Verdict::Proof::kFaults ? 1 : 0;
  }

  void Print() const {
    std::cout << "refused by check: " << refused << "\n";
    for (const auto& [name, column] : {std::pair("wrong", &wrong), std::pair("right", &right)}) {
      std::cout << name << ": " << column->plans << "; check warns of " << column->warned << "; types: faults "
                << column->faults << " (" << column->faults_alone << " that no other judge found), unproven "
                << column->unproven << ", proven " << column->proven << "; operators differ in " << column->ops_differ
                << " of " << column->ops_compared << " compared\n";
      for (const auto& [id, count] : column->by_finding) std::cout << "  " << id << ": " << count << "\n";
      for (const auto& [kind, counts] : column->by_kind)
        std::cout << "  " << kind << ": " << counts.first << ", faults " << counts.second << "\n";
    }
  }
};

TEST_CASE("changed plans are not proven unless they are right") {
  const auto count = FromEnvironment("MOONSHARD_PLANS", 120);
  const auto first = FromEnvironment("MOONSHARD_FIRST", 0);
  const auto seed = static_cast<uint64_t>(FromEnvironment("MOONSHARD_SEED", 1));
  const std::vector<Place> places = Places();
  Table table;
  for (int64_t i = first; i < first + count; ++i) {
    PlanMutator random(seed * 1'000'003 + static_cast<uint64_t>(i));
    const Place& place = places[random.Below(places.size())];
    PlannedModel model;
    model.folder = place.folder;
    model.mesh = MeshFor(random, place.heads);
    MaybeOnCp(random, place, model);
    PlannedModel under_other = model;
    for (const std::string& option : place.options) {
      // The loss of whole logits, and attention that a context replaces.
      const bool refused = !model.context.empty() && (option == "loss_parallel" || option == "stable");
      model.options[option] = random.Below(3) == 0 && !refused;
      under_other.options[option] = random.Below(2) == 0 && !refused;
    }
    under_other.options["loss_parallel"] = false;
    if (!model.options.contains("loss_parallel")) under_other.options.erase("loss_parallel");
    // Another plan on this mesh may be refused where this one is not.
    Plan other;
    try {
      other = PlanOf(under_other);
    } catch (const PlanError&) {
    }
    const uint64_t own = random.Below(1U << 30);
    const MeshAxis axis = model.context.empty() || random.Below(2) == 0 ? MeshAxis::kTp : MeshAxis::kCp;
    const size_t one = random.Below(kMutations);
    const size_t two = random.Below(2) == 0 ? kMutations : random.Below(kMutations);
    std::string changed;
    std::string kind = ToString(static_cast<Mutation>(one));
    if (two < kMutations && two != one) kind += std::string(" and ") + ToString(static_cast<Mutation>(two));
    // On a mesh with fewer axes the plan may have other rules, and a change of one may be another, but its sections are
    // those of the plan on this mesh, which is changed first.
    std::optional<Plan> on_mesh;
    model.change = [&](Plan& plan) {
      PlanMutator here(own, &other, axis);
      changed = here.Mutate(plan, static_cast<Mutation>(one));
      if (two < kMutations && two != one) changed += "; " + here.Mutate(plan, static_cast<Mutation>(two));
      if (!on_mesh) on_mesh = plan;
      plan.recompute = on_mesh->recompute;
      plan.precision = on_mesh->precision;
      plan.kept_dtypes = on_mesh->kept_dtypes;
      plan.data_parallel = on_mesh->data_parallel;
    };
    const Verdict verdict = Judge(model);
    table.Add(verdict, kind);
    constexpr std::array kNames = {"refused", "faults", "unproven", "proven"};
    if ((i + 1) % 500 == 0) std::cout << i + 1 << " plans\n" << std::flush;
    if (verdict.refused()) continue;
    const bool ops_differ = verdict.ops_agree && !*verdict.ops_agree;
    const bool bad = verdict.right ? verdict.proof == Verdict::Proof::kFaults : verdict.proof == Verdict::Proof::kHolds;
    const bool open = verdict.right && (verdict.proof == Verdict::Proof::kUnproven || ops_differ);
    if (!bad && !open) continue;
    std::cout << (bad ? "BAD " : "OPEN ") << i << " " << model.Name() << ": " << changed
              << "\n  numbers: " << verdict.numbers << "; proof: " << kNames[static_cast<size_t>(verdict.proof)]
              << "; operators: " << (verdict.ops.empty() ? "agree" : verdict.ops)
              << "; check: " << Join(verdict.warnings, ", ") << "\n"
              << verdict.text.substr(0, 1200) << "\n"
              << std::flush;
    if (bad) FAIL_CHECK("plan " << i << ": " << model.Name() << ": " << changed);
  }
  table.Print();
}

}  // namespace
}  // namespace moonshard::test

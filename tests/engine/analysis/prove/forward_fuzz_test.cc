// Random forwards under random plans (forward_program.h), judged by ProveAtTwoSizes and by the numbers of the step in
// float64 on real ranks against one rank. A wrong one must never be called proven, a right one never be called wrong,
// and few right ones are not provable.
//
//   MOONSHARD_FORWARDS=5000 MOONSHARD_SEED=1 test_analysis "random forwards*"   by hand; a minute in CI
//   MOONSHARD_FIRST=973                                                         begin there: MOONSHARD_FORWARDS=1 runs
//                                                                               one again
//
// What is found is shortened: operators are left out as long as the verdict stays.
#include <catch2/catch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <mutex>
#include <set>

#include "engine/analysis/prove/type_scope.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/sharded_model/state.h"
#include "tests/engine/analysis/prove/forward_program.h"
#include "tests/engine/analysis/prove/step.h"
#include "tests/support/ranks.h"

namespace moonshard::test {
namespace {

int64_t NumberFromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

// One step: "output", "loss" and "grad.<parameter>" by name.
using ForwardNumbers = std::map<std::string, at::Tensor>;

// The rows of the batch that rank `place` of `ranks` has.
at::Tensor RowsOf(const at::Tensor& full, int64_t ranks, int64_t place) {
  if (ranks == 1) return full.clone();
  const int64_t rows = full.size(0) / ranks;
  return full.narrow(0, place * rows, rows).clone();
}
at::Tensor RowsOf(const at::Tensor& full, const DeviceMesh& mesh) {
  return RowsOf(full, mesh.shape().size(MeshAxis::kDpReplicate),
                mesh.shape().Coordinate(mesh.rank(), MeshAxis::kDpReplicate));
}

// A loss with another gradient for each element, whose terms are not all linear.
at::Tensor LossOf(const at::Tensor& output, const at::Tensor& weights) {
  return (output * weights).mean() + 0.3 * (output * output).mean();
}

// The step without a plan. With ranks of dp, which each compute the step of their own rows, the gradients are the means
// of those of the steps, and each of these ranks has an output and a loss of its own. Programs in which rows of the
// batch meet, so that this is another step than that of all rows, are left out: they are right or wrong by what their
// author meant.
struct UnshardedForward {
  std::vector<ForwardNumbers> of_rows;
  ForwardNumbers gradients;
  at::Tensor x, weights;
};

int64_t RowRanks(const ForwardProgram& program) {
  return MeshShape::Parse(program.mesh).ValueOrThrow().size(MeshAxis::kDpReplicate);
}

// The gradients of the step with all rows of x.
ForwardNumbers GradientsOf(const ForwardNet& net) {
  ForwardNumbers out;
  for (const auto& item : net.root->named_parameters()) {
    if (item.value().grad().defined()) out["grad." + item.key()] = item.value().grad();
  }
  return out;
}

double ErrorOf(const ForwardNumbers& got, const ForwardNumbers& want, std::string& where);

// Nothing if the step cannot be computed, or if a parameter has no gradient.
std::optional<UnshardedForward> RunUnsharded(const ForwardProgram& program) {
  UnshardedForward out;
  const int64_t ranks = RowRanks(program);
  try {
    out.x = RandomValues(program.input, program.values * 31 + 7);
    for (int64_t place = 0; place < ranks; ++place) {
      const ForwardNet net = MakeForwardNet(program);
      const at::Tensor output = net.forward(RowsOf(out.x, ranks, place));
      if (!output.is_floating_point() || !output.requires_grad()) return std::nullopt;
      if (place == 0) out.weights = RandomValues(output.sizes(), program.values * 37 + 1) + 0.2;
      const at::Tensor loss = LossOf(output, out.weights);
      loss.backward();
      out.of_rows.push_back({{"output", output.detach()}, {"loss", loss.detach()}});
      for (const auto& [name, gradient] : GradientsOf(net)) {
        at::Tensor& sum = out.gradients[name];
        const at::Tensor term = gradient / ranks;
        sum = sum.defined() ? sum + term : term;
      }
    }
    if (ranks > 1) {
      const ForwardNet net = MakeForwardNet(program);
      const at::Tensor output = net.forward(out.x);
      if (output.dim() == 0 || output.size(0) != ranks * out.weights.size(0)) return std::nullopt;
      LossOf(output, at::cat(std::vector<at::Tensor>(static_cast<size_t>(ranks), out.weights))).backward();
      std::string where;
      if (!(ErrorOf(GradientsOf(net), out.gradients, where) < 1e-11)) return std::nullopt;
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
  for (const ForwardNumbers& numbers : out.of_rows) {
    if (!at::isfinite(numbers.at("output")).all().item<bool>()) return std::nullopt;
  }
  for (const auto& [name, tensor] : out.gradients) {
    if (!at::isfinite(tensor).all().item<bool>() || tensor.abs().max().item<double>() > 1e7) return std::nullopt;
  }
  for (const ForwardStep& step : program.steps) {
    if (!step.style) continue;
    for (const auto& [parameter, layout] : step.style->params) {
      const auto found = out.gradients.find("grad.block." + step.op + std::to_string(step.id) + "." + parameter);
      if (found == out.gradients.end() || found->second.abs().max().item<double>() < 1e-7) return std::nullopt;
    }
  }
  return out;
}

// Relative to the largest value of the tensor; infinite where a tensor is missing or has other sizes.
double ErrorOf(const ForwardNumbers& got, const ForwardNumbers& want, std::string& where) {
  double largest = 0;
  for (const auto& [name, tensor] : want) {
    const auto found = got.find(name);
    if (found == got.end()) continue;
    double error = std::numeric_limits<double>::infinity();
    if (found->second.sizes() == tensor.sizes()) {
      const double scale = std::max(tensor.abs().max().item<double>(), 1e-7);
      error = tensor.numel() == 0 ? 0 : (found->second - tensor).abs().max().item<double>() / scale;
    }
    if (!(error <= largest)) {
      largest = error;
      where = name;
    }
  }
  return largest;
}

enum class Proven { kRefused, kFaults, kUnproven, kHolds };
constexpr std::array kProvenNames = {"refused", "faults", "unproven", "holds"};

struct Judgement {
  Proven proof = Proven::kRefused;
  bool right = false;
  bool unclear = false;  // an error between those of rounding and those of a wrong step
  std::string numbers;
  std::string text;                 // of the proof
  std::vector<std::string> causes;  // what made it faulty or unproven: operators and reasons
  std::string broken;               // an error of the engine

  std::string Class() const {
    if (!broken.empty()) return "error of the engine";
    if (proof == Proven::kRefused) return "refused";
    if (unclear) return "unclear";
    return std::string(right ? "right, " : "wrong, ") + kProvenNames[static_cast<size_t>(proof)];
  }
  bool bad() const {
    return !broken.empty() || (!unclear && (right ? proof == Proven::kFaults : proof == Proven::kHolds));
  }
};

std::string CauseOf(const TypeFault& fault) {
  std::string what = fault.what.substr(0, fault.what.find('('));
  if (fault.kind == TypeFault::Kind::kBoundary || fault.kind == TypeFault::Kind::kGradient)
    return "boundary or gradient: declared " + fault.declared + ", got " + fault.got;
  std::string message = fault.message.substr(0, 60);
  for (char& c : message) c = std::isdigit(static_cast<unsigned char>(c)) != 0 ? '#' : c;
  return what + (fault.backward ? " (backward): " : ": ") + message;
}

void ProveForward(const ForwardProgram& program, const UnshardedForward& unsharded, int64_t rank, Judgement& out) {
  const MeshShape shape = MeshShape::Parse(program.mesh).ValueOrThrow();
  const auto step = [&](const DeviceMesh& mesh, const TypeOptions& options) {
    const ForwardNet net = MakeForwardNet(program);
    const auto applied = ParallelizeModule(*net.root, program.ToPlan(), mesh);
    const at::Tensor x = RowsOf(unsharded.x, mesh);
    const at::Tensor weights = unsharded.weights.clone();
    TypeScope scope(*applied, options);
    scope.Input(x);
    try {
      const at::Tensor loss = LossOf(net.forward(x), weights);
      scope.Loss(loss);
      loss.backward();
    } catch (const InternalError& error) {
      out.broken = error.what();
      scope.Stopped(error.what());
    } catch (const std::exception& error) {
      scope.Stopped(std::string(error.what()).substr(0, 200));
    }
    return scope.Finish();
  };
  try {
    const Proof proof = ProveAtTwoSizes(shape, step, {}, rank);
    out.proof = !proof.faults.empty() ? Proven::kFaults : proof.holds() ? Proven::kHolds : Proven::kUnproven;
    out.text = ToText(proof);
    if (!proof.faults.empty()) {
      out.causes.push_back(CauseOf(proof.faults.front()));
    } else {
      for (const auto& [what, unproven] : proof.unproven) out.causes.push_back(what);
      for (const std::string& what : proof.sizes_not_compared) out.causes.push_back("size: " + what.substr(0, 90));
    }
  } catch (const PlanError& error) {
    out.text = error.what();
    out.causes.push_back(out.text.substr(0, 60));
  } catch (const std::exception& error) {
    out.broken = error.what();
  }
}

void CompareNumbers(const ForwardProgram& program, const UnshardedForward& unsharded, Judgement& out) {
  std::mutex mutex;
  double largest = 0;
  std::string worst;
  const auto failures = RunRanksFailing(
      program.mesh,
      [&](DeviceMesh& mesh) {
        const ForwardNet net = MakeForwardNet(program);
        const auto applied = ParallelizeModule(*net.root, program.ToPlan(), mesh);
        const at::Tensor output = net.forward(RowsOf(unsharded.x, mesh));
        const at::Tensor loss = LossOf(output, unsharded.weights.clone());
        loss.backward();
        ForwardNumbers want = unsharded.gradients;
        const int64_t place = mesh.shape().Coordinate(mesh.rank(), MeshAxis::kDpReplicate);
        for (const auto& [name, tensor] : unsharded.of_rows[static_cast<size_t>(place)]) want[name] = tensor;
        ForwardNumbers got = {{"loss", loss.detach()}};
        got["output"] = output.detach();
        for (const LiveParameter& parameter : applied->parameters()) {
          if (parameter.is_buffer || !parameter.tensor.requires_grad()) continue;
          const at::Tensor full = GatherFull(*applied, parameter, parameter.tensor.grad());
          const std::string name = "grad." + parameter.path;
          const bool wanted = want.contains(name);
          if (full.defined() && wanted) got[name] = full;
          // No gradient is one of zeros.
          if (!full.defined() && wanted) got[name] = at::zeros_like(want[name]);
          if (full.defined() && !wanted) want[name] = at::zeros_like(got[name] = full);
        }
        std::string where;
        const double error = ErrorOf(got, want, where);
        const std::lock_guard lock(mutex);
        if (!(error <= largest)) {
          largest = error;
          worst = where;
        }
      },
      std::chrono::seconds(20));
  out.right = failures.empty() && largest < 1e-11;
  out.unclear = failures.empty() && largest >= 1e-11 && largest < 1e-7;
  out.numbers = failures.empty() ? (std::ostringstream() << largest).str() + " in " + worst
                                 : failures.front().text.substr(0, 200);
  for (const RankFailure& failure : failures) {
    try {
      std::rethrow_exception(failure.error);
    } catch (const InternalError& error) {
      out.broken = error.what();
    } catch (...) {
    }
  }
}

Judgement JudgePlan(const ForwardProgram& program, const UnshardedForward& unsharded) {
  Judgement out;
  const int64_t ranks = MeshShape::Parse(program.mesh).ValueOrThrow().world_size();
  ProveForward(program, unsharded, static_cast<int64_t>(program.values) % ranks, out);
  if (out.proof == Proven::kRefused) return out;
  CompareNumbers(program, unsharded, out);
  return out;
}

std::optional<Judgement> JudgeForward(const ForwardProgram& program) {
  const std::optional<UnshardedForward> unsharded = RunUnsharded(program);
  if (!unsharded) return std::nullopt;
  Judgement out = JudgePlan(program, *unsharded);
  // Right by the values alone: what is clamped, saturated or positive everywhere.
  for (uint64_t other = 1; other < 4 && out.right && out.proof == Proven::kFaults; ++other) {
    ForwardProgram again = program;
    again.values = program.values * 7919 + other;
    if (const std::optional<UnshardedForward> values = RunUnsharded(again)) CompareNumbers(again, *values, out);
  }
  return out;
}

// Verdicts that are known to be other than the numbers, by what the proof says and by what is in the program. A right
// program that is called wrong or is not provable; never a wrong one that is proven.
struct KnownHole {
  const char* name;
  const char* cause;  // in the first cause
  const char* step;   // an operator of the program; "": any
};
constexpr std::array kKnownHoles = {
    KnownHole{"constants of local sizes", "the contracted dim is sharded", "eye of local size"},
    KnownHole{"the range of ids is read from shards", "covers only the local shard", "one_hot"},
    KnownHole{"a product's gradient looks for zeros in shards", "aten::any (backward)", ""},
    KnownHole{"a product's gradient looks for zeros in shards", "aten::_local_scalar_dense (backward)", "prod"},
    KnownHole{"shards of one element in an unknown dim", "one element", ""},
    KnownHole{"shards of one element in an unknown dim", "holds 0, rank 1 holds 1, of 2 indices", ""},
    KnownHole{"a shard that a view has joined, declared packed", "boundary or gradient: declared packed", ""},
    KnownHole{"shards beside a dim of size 1", "aten::bmm", "einsum btd,btd->bt"},
    KnownHole{"shards beside a dim of size 1", "declared shard(0), got partial", "Bilinear"},
    KnownHole{"the maximum of terms with themselves", "aten::maximum: a nonlinear operator", "maximum"},
};

// "" where the verdict is none of these. The length of uneven shards that are gathered is a guess of the rank without
// peers that proves the step.
std::string KnownHoleOf(const ForwardProgram& program, const Judgement& judged) {
  if (!judged.right || judged.proof == Proven::kHolds || !judged.broken.empty() || judged.causes.empty()) return "";
  for (const KnownHole& hole : kKnownHoles) {
    const auto has = [&](const ForwardStep& step) { return *hole.step == 0 || step.op == hole.step; };
    const bool said = judged.causes.front().find(hole.cause) != std::string::npos;
    if (said && std::ranges::any_of(program.steps, has)) return hole.name;
  }
  if (judged.text.find("shards of one element is ambiguous") != std::string::npos)
    return "shards of one element in an unknown dim";
  for (const ForwardStep& step : program.steps) {
    for (const int64_t number : step.numbers) {
      if (step.style && number == 5 && judged.proof == Proven::kFaults) return "uneven shards that are gathered";
    }
  }
  return "";
}

// The program without what can be left out.
ForwardProgram Shortened(ForwardProgram program, const std::string& kind, const std::vector<std::string>& causes) {
  for (bool again = true; again;) {
    again = false;
    for (size_t i = program.steps.size(); i-- > 0 && program.steps.size() > 1;) {
      const ForwardProgram shorter = program.Without(i);
      const std::optional<Judgement> judged = JudgeForward(shorter);
      if (!judged || judged->Class() != kind) continue;
      if (!causes.empty() && (judged->causes.empty() || judged->causes.front() != causes.front())) continue;
      program = shorter;
      again = true;
    }
  }
  return program;
}

// A right program under a plan in which one declaration is another one. Most of them are wrong, many in a gradient
// alone. A declaration may be false and the numbers right, where nothing is redistributed by it or the gradient that it
// is about is not used, so that a right one with a fault says nothing.
struct OtherPlans {
  std::map<std::string, int64_t> classes;

  void Try(const ForwardProgram& program, int64_t number) {
    const std::optional<UnshardedForward> unsharded = RunUnsharded(program);
    Draws draws(program.values * 53 + 11);
    for (int plans = 0; plans < 2 && unsharded; ++plans) {
      std::optional<ForwardProgram> other;
      for (int tries = 0; tries < 20 && !other; ++tries) other = WithOtherPlan(program, draws);
      if (!other) continue;
      const Judgement judged = JudgePlan(*other, *unsharded);
      ++classes[judged.Class()];
      const bool proven = !judged.unclear && !judged.right && judged.proof == Proven::kHolds;
      if (!proven && judged.broken.empty()) continue;
      FAIL_CHECK("forward " << number << " under another plan: " << judged.Class() << ", by numbers " << judged.numbers
                            << "\n"
                            << other->ToText() << judged.text.substr(0, 1000) << judged.broken);
    }
  }
};

TEST_CASE("random forwards are not proven unless they are right") {
  const int64_t count = NumberFromEnvironment("MOONSHARD_FORWARDS", 300);
  const int64_t first = NumberFromEnvironment("MOONSHARD_FIRST", 0);
  const auto seed = static_cast<uint64_t>(NumberFromEnvironment("MOONSHARD_SEED", 1));
  const int64_t shown = NumberFromEnvironment("MOONSHARD_SHOWN", 2);  // shortened programs for each cause
  std::map<std::string, int64_t> classes;
  std::map<std::string, std::map<std::string, int64_t>> causes;  // by class
  std::map<std::string, std::pair<int64_t, int64_t>> operators;  // in right programs: all, not proven
  std::map<std::string, int64_t> known;
  OtherPlans other_plans;
  for (int64_t i = first; i < first + count; ++i) {
    const ForwardProgram program = GenerateForward(seed * 1'000'003 + static_cast<uint64_t>(i));
    const std::optional<Judgement> judged = JudgeForward(program);
    if (!judged) {
      ++classes["nothing that counts"];
      continue;
    }
    const std::string kind = judged->Class();
    ++classes[kind];
    const bool open = judged->right && judged->proof == Proven::kUnproven;
    if (judged->right && judged->proof != Proven::kRefused) {
      for (const ForwardStep& step : program.steps) {
        auto& of = operators[step.op];
        ++of.first;
        of.second += judged->proof == Proven::kHolds ? 0 : 1;
      }
    }
    if (judged->right && judged->proof == Proven::kHolds) other_plans.Try(program, i);
    if ((i + 1) % 500 == 0) std::cout << i + 1 << " forwards\n" << std::flush;
    if (!judged->bad() && !open && judged->proof != Proven::kRefused) continue;
    if (const std::string hole = KnownHoleOf(program, *judged); !hole.empty()) {
      ++known[kind + ": " + hole];
      continue;
    }
    ForwardProgram shorter = program;
    std::string cause = judged->causes.empty() ? "" : judged->causes.front();
    if (cause.empty()) {
      shorter = Shortened(program, kind, judged->causes);
      for (const ForwardStep& step : shorter.steps) cause += step.op + " ";
    }
    const int64_t before = causes[kind][cause]++;
    if (before >= shown) {
      if (judged->bad()) FAIL_CHECK("forward " << i << ": " << kind << ": " << cause);
      continue;
    }
    if (judged->proof != Proven::kRefused) shorter = Shortened(shorter, kind, judged->causes);
    const std::optional<Judgement> again = JudgeForward(shorter);
    std::cout << (judged->bad() ? "BAD " : "OPEN ") << i << " " << kind << ", by numbers "
              << (again ? again->numbers : judged->numbers) << "\n"
              << shorter.ToText() << (again ? again->text : judged->text).substr(0, 1000) << judged->broken << "\n"
              << std::flush;
    if (judged->bad()) FAIL_CHECK("forward " << i << ": " << kind << ": " << cause);
  }
  for (const auto& [kind, number] : classes) std::cout << kind << ": " << number << "\n";
  for (const auto& [kind, number] : other_plans.classes) std::cout << "other plan: " << kind << ": " << number << "\n";
  // Of a few forwards the shares say nothing.
  if (count >= 200) {
    const int64_t right = classes["right, holds"] + classes["right, unproven"] + classes["right, faults"];
    CHECK(classes["right, holds"] * 3 > count);
    CHECK(classes["wrong, faults"] > 0);
    CHECK(other_plans.classes["wrong, faults"] * 2 > classes["right, holds"]);
    CHECK(classes["right, unproven"] * 20 <= right);
  }
  for (const auto& [hole, number] : known) std::cout << "known: " << hole << ": " << number << "\n";
  for (const auto& [kind, of] : causes) {
    std::cout << kind << ", by cause:\n";
    for (const auto& [cause, number] : of) std::cout << "  " << number << "  " << cause << "\n";
  }
  std::cout << "operators of right forwards: all, not proven\n";
  for (const auto& [name, numbers] : operators) {
    if (numbers.second > 0) std::cout << "  " << name << ": " << numbers.first << ", " << numbers.second << "\n";
  }
}

}  // namespace
}  // namespace moonshard::test

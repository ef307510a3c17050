// What an exported program costs, as ratios and differences within one run; program.py runs all of it on programs that
// it exports.
//   bench_program nodes PROGRAM [PAIRS]           a forward, against the same operators called in turn through the
//                                                 dispatcher
//   bench_program step MODEL PROGRAM [PAIRS]      forward and backward, against the C++ model of MODEL/config.json
//   bench_program memory PROGRAM ROWS LENGTH      the largest memory of forward and backward beyond what is there
//                                                 before, and of a training step, which has the update of AdamW too
//   bench_program load PROGRAM [TIMES]            opening it
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/core/base/json.h"
#include "engine/models/causal_lm.h"
#include "engine/models/program/program.h"
#include "engine/runtime/nn/defer_init.h"
#include "tests/bench/timing.h"
#include "tests/support/paths.h"

namespace moonshard::bench {
namespace {

at::Tensor Ids(int64_t rows, int64_t length) {
  return torch::arange(rows * length).remainder(40).view({rows, length}) + 2;
}

// With the same values at every run.
std::shared_ptr<Program> OpenWithValues(const std::string& path) {
  auto program = Program::Open(path);
  torch::manual_seed(0);
  for (auto& parameter : program->named_parameters()) {
    nn::Materialize(parameter.value(), torch::randn(parameter.value().sizes()) * 0.05);
  }
  return program;
}

// A call of an operator with its arguments.
struct RecordedOperator {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
};

// The operators that a body calls, and not those that they call.
class OperatorRecorder {
 public:
  static std::vector<RecordedOperator> Record(const std::function<void()>& run) {
    calls.clear();
    depth = 0;
    const at::CallbackHandle handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&Begin, &End).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    run();
    at::removeCallback(handle);
    return std::move(calls);
  }

 private:
  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& function) {
    if (depth++ > 0) return nullptr;
    const auto name = function.operator_name();
    if (!name) return nullptr;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name->name.c_str(), name->overload_name.c_str());
    const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
    calls.push_back({op, std::vector<c10::IValue>(inputs.begin(), inputs.end())});
    return nullptr;
  }
  static void End(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) { --depth; }

  static inline thread_local std::vector<RecordedOperator> calls;
  static inline thread_local int depth = 0;
};

void Nodes(const std::string& path, int pairs) {
  const auto program = OpenWithValues(path);
  const torch::NoGradGuard no_grad;
  const at::Tensor ids = Ids(1, 4);
  const auto interpreted = [&] { program->forward(ids, ids); };
  interpreted();
  const std::vector<RecordedOperator> calls = OperatorRecorder::Record(interpreted);
  c10::Stack stack;
  const auto direct = [&] {
    for (const RecordedOperator& call : calls) {
      stack.clear();
      for (const c10::IValue& argument : call.arguments) stack.push_back(argument);
      call.op.callBoxed(stack);
    }
    stack.clear();
  };
  const PairTimes times = TimePairs(interpreted, direct, pairs, 100);
  const size_t nodes = program->exported().graph.nodes.size();
  std::printf("{\"nodes\": %zu, \"operators\": %zu, \"program_us\": %.1f, \"boxed_us\": %.1f, \"us_a_node\": %.3f}\n",
              nodes, calls.size(), times.a_ms * 1e3, times.b_ms * 1e3,
              (times.a_ms - times.b_ms) * 1e3 / static_cast<double>(nodes));
}

void Step(const std::string& model_directory, const std::string& path, int pairs) {
  const auto program = OpenWithValues(path);
  const CausalLm model = MakeCausalLm(ReadJsonFile(model_directory + "/config.json").ValueOrThrow()).ValueOrThrow();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model.module->named_parameters()) {
      parameter.value().copy_(*program->named_parameters().find(parameter.key()));
    }
  }
  const at::Tensor ids = Ids(2, 64);
  const auto of_program = [&] { program->forward(ids, ids)["loss"].backward(); };
  const auto of_model = [&] { CausalLmLoss(model.forward(ids, std::nullopt, std::nullopt), ids).backward(); };
  const double difference = (program->forward(ids, ids)["logits"] - model.forward(ids, std::nullopt, std::nullopt))
                                .abs()
                                .max()
                                .item<double>();
  TORCH_CHECK(difference < 1e-4, "the two compute different things: ", difference);
  const PairTimes times = TimePairs(of_program, of_model, pairs, 20);
  std::printf("{\"program_ms\": %.3f, \"model_ms\": %.3f, \"ratio\": %.3f}\n", times.a_ms, times.b_ms, times.ratio);
}

// Of the thread that holds a guard of it; autograd runs a CPU's backward on the thread that asked for it.
class PeakOfAllocator final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/, int64_t alloc_size, size_t /*total_allocated*/, size_t /*total_reserved*/,
                         c10::Device /*device*/) override {
    live_ += alloc_size;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

// The largest memory of the second of two calls of `step`; before it the program has no gradients.
int64_t PeakOf(Program& program, const std::function<void()>& step) {
  step();
  for (at::Tensor& parameter : program.parameters()) parameter.mutable_grad().reset();
  const auto reporter = std::make_shared<PeakOfAllocator>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, reporter);
    step();
  }
  return reporter->peak();
}

void Memory(const std::string& path, int64_t rows, int64_t length) {
  const auto program = OpenWithValues(path);
  const at::Tensor ids = Ids(rows, length);
  const auto forward_backward = [&] {
    const ProgramOutputs outputs = program->forward(ids, ids);
    outputs["loss"].backward();
  };
  const int64_t peak = PeakOf(*program, forward_backward);
  for (at::Tensor& parameter : program->parameters()) parameter.mutable_grad().reset();
  torch::optim::AdamW optimizer(program->parameters(), torch::optim::AdamWOptions(1e-4));
  const int64_t with_update = PeakOf(*program, [&] {
    forward_backward();
    optimizer.step();
  });
  std::printf("{\"peak_bytes\": %lld, \"train_peak_bytes\": %lld}\n", static_cast<long long>(peak),
              static_cast<long long>(with_update));
}

void Load(const std::string& path, int times) {
  std::vector<double> ms;
  for (int i = 0; i < times; ++i) ms.push_back(MillisecondsOf([&] { Program::Open(path); }));
  std::printf("{\"summary\": \"%s\", \"load_ms\": %.1f}\n", Program::Open(path)->Summary().c_str(), Median(ms));
}

int Run(const Arguments& called_with) {
  at::set_num_threads(1);
  const std::vector<std::string>& arguments = called_with.words();
  const auto at = [&](size_t i) { return arguments.size() > i ? arguments[i] : std::string(); };
  const auto number = [&](size_t i, int otherwise) { return called_with.Times(i, otherwise); };
  const std::string fixtures = test::SourcePath("tests/parity/");
  if (arguments.empty()) {  // of committed programs, as `./dev bench` does
    Nodes(fixtures + "programs/llama/program.pt2", number(0, 2000));
    Step(fixtures + "llama_gqa", fixtures + "programs/reference/llama_gqa.pt2", number(0, 300));
  } else if (at(0) == "nodes" && arguments.size() > 1) {
    Nodes(at(1), number(2, 2000));
  } else if (at(0) == "step" && arguments.size() > 2) {
    Step(at(1), at(2), number(3, 200));
  } else if (at(0) == "memory" && arguments.size() > 3) {
    Memory(at(1), std::stoi(at(2)), std::stoi(at(3)));
  } else if (at(0) == "load" && arguments.size() > 1) {
    Load(at(1), number(2, 5));
  } else {
    std::fprintf(stderr, "bench_program nodes|step|memory|load ...: see the head of tests/bench/program.cc\n");
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace moonshard::bench

int main(int argc, char** argv) { return moonshard::bench::Run(moonshard::bench::Arguments(argc, argv)); }

// What an optimizer's adapter lets pass of a record: the options that LibTorch's own constructors let pass, the numbers
// and tensors that a step computes with.
#include <catch2/catch.hpp>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <c10/util/Exception.h>

#include "tests/engine/train/training_state/run.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// An optimizer of one parameter after one step, its adapter, and the record of both.
struct Stepped {
  explicit Stepped(std::unique_ptr<torch::optim::Optimizer> of, at::Tensor p)
      : parameter(std::move(p)), optimizer(std::move(of)) {
    parameter.mutable_grad() = at::ones_like(parameter);
    optimizer->step();
    adapter = AdapterOf(*optimizer).ValueOrThrow();
    record.kind = adapter->kind();
    record.groups.push_back({adapter->OptionsOf(0), {"p"}});
    if (const std::optional<ParameterMemory> memory = adapter->MemoryOf(parameter)) {
      record.memories.push_back({memory->values, {}, {"p"}});
      for (const auto& [name, tensor] : memory->tensors) record.memories.front().tensors.push_back(name);
    }
  }
  JsonValue::Object& options() { return record.groups.front().options; }
  MemoryRecord& memory() { return record.memories.front(); }
  std::string Found() const { return ToText(adapter->CheckRecord(record)); }

  at::Tensor parameter;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<OptimizerAdapter> adapter;
  OptimizerRecord record;
};

template <class Kind, class Options>
Stepped Make(const Options& options) {
  const at::Tensor parameter = torch::ones({3}, torch::requires_grad());
  return Stepped(std::make_unique<Kind>(std::vector<at::Tensor>{parameter}, options), parameter);
}

// A kind by its options, one of them with another number.
struct Option {
  std::string name;
  std::function<Stepped()> plain;
  std::function<void(double)> construct;  // with LibTorch alone; throws what it throws
};

template <class Kind, class Options>
Option Of(const std::string& name, const Options& base, std::function<void(Options&, double)> set) {
  const auto construct = [base, set](double value) {
    Options options = base;
    set(options, value);
    const Kind made(std::vector<at::Tensor>{torch::ones({3}, torch::dtype(torch::kFloat64).requires_grad(true))},
                    options);
  };
  return {name, [base] { return Make<Kind>(base); }, construct};
}

template <class Kind, class Options>
void AddAdam(std::vector<Option>& out) {
  const Options base(0.1);
  out.push_back(Of<Kind, Options>("lr", base, [](Options& o, double v) { o.lr(v); }));
  out.push_back(Of<Kind, Options>("betas", base, [](Options& o, double v) { o.betas({v, 0.9}); }));
  out.push_back(Of<Kind, Options>("eps", base, [](Options& o, double v) { o.eps(v); }));
  out.push_back(Of<Kind, Options>("weight_decay", base, [](Options& o, double v) { o.weight_decay(v); }));
}

std::vector<Option> AllOptions() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): five kinds with their options
  std::vector<Option> out;
  AddAdam<AdamW, AdamWOptions>(out);
  AddAdam<Adam, AdamOptions>(out);
  const SGDOptions sgd(0.1);
  out.push_back(Of<SGD, SGDOptions>("lr", sgd, [](SGDOptions& o, double v) { o.lr(v); }));
  out.push_back(Of<SGD, SGDOptions>("dampening", sgd, [](SGDOptions& o, double v) { o.dampening(v); }));
  out.push_back(Of<SGD, SGDOptions>("weight_decay", sgd, [](SGDOptions& o, double v) { o.weight_decay(v); }));
  const SGDOptions momentum = SGDOptions(0.1).momentum(0.9);
  out.push_back(Of<SGD, SGDOptions>("momentum", momentum, [](SGDOptions& o, double v) { o.momentum(v); }));
  const SGDOptions nesterov = SGDOptions(0.1).momentum(0.9).nesterov(true);
  out.push_back(Of<SGD, SGDOptions>("momentum", nesterov, [](SGDOptions& o, double v) { o.momentum(v); }));
  out.push_back(Of<SGD, SGDOptions>("dampening", nesterov, [](SGDOptions& o, double v) { o.dampening(v); }));
  const AdagradOptions ada(0.1);
  const auto add_ada = [&](const char* name, std::function<void(AdagradOptions&, double)> set) {
    out.push_back(Of<Adagrad, AdagradOptions>(name, ada, std::move(set)));
  };
  add_ada("lr", [](AdagradOptions& o, double v) { o.lr(v); });
  add_ada("lr_decay", [](AdagradOptions& o, double v) { o.lr_decay(v); });
  add_ada("weight_decay", [](AdagradOptions& o, double v) { o.weight_decay(v); });
  add_ada("initial_accumulator_value", [](AdagradOptions& o, double v) { o.initial_accumulator_value(v); });
  add_ada("eps", [](AdagradOptions& o, double v) { o.eps(v); });
  const RMSpropOptions rms = RMSpropOptions(0.1).momentum(0.5).centered(true);
  const auto add_rms = [&](const char* name, std::function<void(RMSpropOptions&, double)> set) {
    out.push_back(Of<RMSprop, RMSpropOptions>(name, rms, std::move(set)));
  };
  add_rms("lr", [](RMSpropOptions& o, double v) { o.lr(v); });
  add_rms("alpha", [](RMSpropOptions& o, double v) { o.alpha(v); });
  add_rms("eps", [](RMSpropOptions& o, double v) { o.eps(v); });
  add_rms("weight_decay", [](RMSpropOptions& o, double v) { o.weight_decay(v); });
  add_rms("momentum", [](RMSpropOptions& o, double v) { o.momentum(v); });
  return out;
}

// Of what a float32 can hold; with more LibTorch makes an optimizer, and throws in a step.
TEST_CASE("an option is valid in a record if LibTorch makes an optimizer with it") {
  std::map<std::string, std::set<std::string>> seen;
  for (const Option& option : AllOptions()) {
    Stepped stepped = option.plain();
    INFO(stepped.record.kind << " " << WriteJson(stepped.options(), 0));
    REQUIRE(stepped.Found().empty());
    REQUIRE(stepped.options().contains(option.name));
    seen[stepped.record.kind].insert(option.name);
    const JsonValue plain = stepped.options().at(option.name);
    for (const double value :
         {-1e308, -1e38, -1.0, -1e-308, 0.0, 1e-308, 0.5, 0x1.fffffffffffffp-1, 1.0, 2.0, 1e38, 1e39, 1e308}) {
      bool made = std::abs(value) <= std::numeric_limits<float>::max();
      try {
        option.construct(value);
      } catch (const c10::Error&) {
        made = false;
      }
      stepped.options()[option.name] = plain.is_array() ? JsonValue(JsonValue::Array{value, 0.9}) : JsonValue(value);
      const std::string found = stepped.Found();
      INFO(option.name << " " << value << ": " << found);
      // Without momentum a memory has no buffer, and with it it must have one.
      const bool passes = found.empty() || found.find("'momentum_buffer'") != std::string::npos;
      CHECK(passes == made);
      CHECK(stepped.adapter->SetOptions(0, stepped.options()).empty() == made);
    }
  }
  // Every option that is a number.
  for (const Option& option : AllOptions()) {
    Stepped stepped = option.plain();
    for (const auto& [name, value] : stepped.options()) {
      INFO(stepped.record.kind << " " << name);
      CHECK((value.is_bool() || seen[stepped.record.kind].contains(name)));
    }
  }
}

TEST_CASE("what is wrong in an optimizer's record is named with its place and what is allowed") {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): five kinds with their options
  const auto adamw = [] { return Make<AdamW>(AdamWOptions(0.1)); };
  const auto amsgrad = [] { return Make<AdamW>(AdamWOptions(0.1).amsgrad(true)); };
  const auto sgd = [] { return Make<SGD>(SGDOptions(0.1).momentum(0.9)); };
  const auto adagrad = [] { return Make<Adagrad>(AdagradOptions(0.1)); };
  const auto rmsprop = [] { return Make<RMSprop>(RMSpropOptions(0.1).momentum(0.5).centered(true)); };
  struct Row {
    std::string what;
    std::function<Stepped()> of;
    std::function<void(Stepped&)> change;
    std::vector<std::string> says;
  };
  const std::string group = "at: optimizer.groups[0]";
  const std::string p = "at: p";
  const std::vector<Row> rows = {
      {"betas",
       adamw,
       [](Stepped& s) {
         s.options()["betas"] = JsonValue::Array{2, 3};
       },
       {"no valid 'betas'", group, "declared: [2,3]", "required: two numbers, each a number from 0 to below 1"}},
      {"one beta", adamw, [](Stepped& s) { s.options()["betas"] = JsonValue::Array{0.9}; }, {"'betas'", "[0.9]"}},
      {"lr as a text", adamw, [](Stepped& s) { s.options()["lr"] = "0.1"; }, {"'lr'", group, "declared: \"0.1\""}},
      {"no eps", adamw, [](Stepped& s) { s.options().erase("eps"); }, {"'eps'", group, "declared: nothing"}},
      {"amsgrad as a number", adamw, [](Stepped& s) { s.options()["amsgrad"] = 1; }, {"'amsgrad'", "true or false"}},
      {"an option more",
       adamw,
       [](Stepped& s) { s.options()["maximize"] = true; },
       {"the checkpoint has \"maximize\"", group, "amsgrad, betas, eps, lr, weight_decay"}},
      {"a step below 0",
       adamw,
       [](Stepped& s) { s.memory().values["step"] = -1; },
       {"no valid 'step'", p, "declared: -1", "required: an integer from 0 to 2^53"}},
      {"a step without a next one", adamw, [](Stepped& s) { s.memory().values["step"] = INT64_MAX; }, {"'step'", p}},
      {"a step of a half", adamw, [](Stepped& s) { s.memory().values["step"] = 0.5; }, {"'step'", "declared: 0.5"}},
      {"a moment less",
       adamw,
       [](Stepped& s) { s.memory().tensors = {"exp_avg"}; },
       {"no valid 'exp_avg_sq'", p, "the options of the parameter group require it"}},
      {"a moment more",
       adamw,
       [](Stepped& s) { s.memory().tensors.emplace_back("sum"); },
       {"has \"sum\"", p, "exp_avg, exp_avg_sq, max_exp_avg_sq"}},
      {"amsgrad without its moment",
       adamw,
       [](Stepped& s) { s.options()["amsgrad"] = true; },
       {"no valid 'max_exp_avg_sq'", p}},
      {"amsgrad's moment without amsgrad", amsgrad, [](Stepped& s) { s.options()["amsgrad"] = false; }, {}},
      {"no buffer for momentum", sgd, [](Stepped& s) { s.memory().tensors.clear(); }, {"'momentum_buffer'", p}},
      {"nesterov with dampening",
       sgd,
       [](Stepped& s) {
         s.options()["nesterov"] = true;
         s.options()["dampening"] = 0.5;
       },
       {"exclude each other", group, "momentum 0.9 and dampening 0.5", "no dampening"}},
      {"a parameter that Adagrad forgot",
       adagrad,
       [](Stepped& s) { s.record.memories.clear(); },
       {"no optimizer state for 'p'", p, "adagrad"}},
      {"a parameter that AdamW has not met", adamw, [](Stepped& s) { s.record.memories.clear(); }, {}},
      {"Adagrad without its sum", adagrad, [](Stepped& s) { s.memory().tensors.clear(); }, {"'sum'", p}},
      {"RMSprop, momentum",
       rmsprop,
       [](Stepped& s) { std::erase(s.memory().tensors, "momentum_buffer"); },
       {"'momentum_buffer'", p}},
      {"RMSprop, centered", rmsprop, [](Stepped& s) { std::erase(s.memory().tensors, "grad_avg"); }, {"'grad_avg'", p}},
  };
  for (const Row& row : rows) {
    DYNAMIC_SECTION(row.what) {
      Stepped stepped = row.of();
      REQUIRE(stepped.Found().empty());
      row.change(stepped);
      const Diagnostics found = stepped.adapter->CheckRecord(stepped.record);
      CHECK(found.size() == (row.says.empty() ? 0 : 1));
      for (const std::string& text : row.says) CHECK_THAT(ToText(found), Contains("MS0410") && Contains(text));
    }
  }
}

TEST_CASE("an optimizer that is given what it cannot have stays as it was") {
  Stepped stepped = Make<torch::optim::AdamW>(torch::optim::AdamWOptions(0.1));
  const JsonValue::Object options = stepped.adapter->OptionsOf(0);
  JsonValue::Object wrong = options;
  wrong["lr"] = 7;
  wrong["eps"] = -1;
  CHECK(stepped.adapter->SetOptions(0, wrong).size() == 1);
  CHECK((stepped.adapter->OptionsOf(0) == options));

  const auto memory = [&] { return *stepped.adapter->MemoryOf(stepped.parameter); };
  const at::Tensor moment = memory().tensors.at("exp_avg");
  ParameterMemory less = memory();
  less.values["step"] = 7;
  less.tensors.erase("exp_avg_sq");
  CHECK(stepped.adapter->SetMemory(stepped.parameter, less).size() == 1);
  CHECK(memory().values.at("step").AsInt() == 1);
  CHECK(memory().tensors.at("exp_avg").data_ptr() == moment.data_ptr());
  ParameterMemory whole = memory();
  whole.values["step"] = 7;
  CHECK(stepped.adapter->SetMemory(stepped.parameter, whole).empty());
  CHECK(memory().values.at("step").AsInt() == 7);
}

}  // namespace
}  // namespace moonshard::test

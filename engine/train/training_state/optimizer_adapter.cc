// Each optimizer's fields are listed once, in a Visit function that serves both directions: with a Writer the archive
// fills JSON and tensors, with a Reader it sets the fields. A field that is added to the list is saved and loaded, or
// neither. (LibTorch's own serialization writes one archive of a process's tensors, which no other mesh could read.)
//
// Kinds are compared exactly (typeid): a class derived from AdamW may have state of its own, which would be lost
// silently. Numbers and tensors are kept apart, because numbers are the same on every rank and go into the manifest,
// and tensors have the parameter's placement and go into the rank files.
#include "engine/train/training_state/optimizer_adapter.h"

#include <tuple>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace moonshard {
namespace {

using torch::optim::Optimizer;

// Fields of an optimizer's options or memory under their names, in either direction. A value that is missing or of
// another kind when read back is reported.
class Writer {
 public:
  explicit Writer(JsonValue::Object& values, std::map<std::string, at::Tensor>* tensors = nullptr)
      : values_(values), tensors_(tensors) {}

  void Take(const char* name, const double& value) { values_[name] = value; }
  void Take(const char* name, const int64_t& value) { values_[name] = value; }
  void Take(const char* name, const bool& value) { values_[name] = value; }
  void Take(const char* name, const std::tuple<double, double>& value) {
    values_[name] = JsonValue::Array{std::get<0>(value), std::get<1>(value)};
  }
  void Take(const char* name, const at::Tensor& value) {
    if (value.defined()) (*tensors_)[name] = value.detach();
  }

 private:
  JsonValue::Object& values_;
  std::map<std::string, at::Tensor>* tensors_;
};

class Reader {
 public:
  explicit Reader(const JsonValue::Object& values, std::map<std::string, at::Tensor>* tensors = nullptr)
      : values_(values), tensors_(tensors) {}

  void Take(const char* name, double& value) {
    if (const JsonValue* found = Need(name, &JsonValue::is_number)) value = found->AsDouble();
  }
  void Take(const char* name, int64_t& value) {
    if (const JsonValue* found = Need(name, &JsonValue::is_int)) value = found->AsInt();
  }
  void Take(const char* name, bool& value) {
    if (const JsonValue* found = Need(name, &JsonValue::is_bool)) value = found->AsBool();
  }
  void Take(const char* name, std::tuple<double, double>& value) {
    const JsonValue* found = Need(name, &JsonValue::is_array);
    if (!found) return;
    const JsonValue::Array& pair = found->AsArray();
    if (pair.size() == 2 && pair[0].is_number() && pair[1].is_number()) {
      value = {pair[0].AsDouble(), pair[1].AsDouble()};
    } else {
      Say(name);
    }
  }
  void Take(const char* name, at::Tensor& value) {
    const auto found = tensors_->find(name);
    value = found == tensors_->end() ? at::Tensor() : std::move(found->second);
  }

  Diagnostics found() && { return std::move(found_); }

 private:
  const JsonValue* Need(const char* name, bool (JsonValue::*is)() const) {
    const auto found = values_.find(name);
    if (found != values_.end() && (found->second.*is)()) return &found->second;
    Say(name);
    return nullptr;
  }
  void Say(const char* name) {
    found_.push_back(MakeDiagnostic(Finding::kBadManifest,
                                    std::string("the checkpoint has no valid '") + name + "' of the optimizer"));
  }

  const JsonValue::Object& values_;
  std::map<std::string, at::Tensor>* tensors_;
  Diagnostics found_;
};

// What each optimizer has, once for both directions.
template <class Archive, class Options>
void VisitAdamOptions(Archive& archive, Options& o) {
  archive.Take("lr", o.lr());
  archive.Take("betas", o.betas());
  archive.Take("eps", o.eps());
  archive.Take("weight_decay", o.weight_decay());
  archive.Take("amsgrad", o.amsgrad());
}
template <class Archive, class State>
void VisitAdamState(Archive& archive, State& s) {
  archive.Take("step", s.step());
  archive.Take("exp_avg", s.exp_avg());
  archive.Take("exp_avg_sq", s.exp_avg_sq());
  archive.Take("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamWOptions& o) {
  VisitAdamOptions(archive, o);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamWParamState& s) {
  VisitAdamState(archive, s);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamOptions& o) {
  VisitAdamOptions(archive, o);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamParamState& s) {
  VisitAdamState(archive, s);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::SGDOptions& o) {
  archive.Take("lr", o.lr());
  archive.Take("momentum", o.momentum());
  archive.Take("dampening", o.dampening());
  archive.Take("weight_decay", o.weight_decay());
  archive.Take("nesterov", o.nesterov());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::SGDParamState& s) {
  archive.Take("momentum_buffer", s.momentum_buffer());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdagradOptions& o) {
  archive.Take("lr", o.lr());
  archive.Take("lr_decay", o.lr_decay());
  archive.Take("weight_decay", o.weight_decay());
  archive.Take("initial_accumulator_value", o.initial_accumulator_value());
  archive.Take("eps", o.eps());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdagradParamState& s) {
  archive.Take("step", s.step());
  archive.Take("sum", s.sum());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::RMSpropOptions& o) {
  archive.Take("lr", o.lr());
  archive.Take("alpha", o.alpha());
  archive.Take("eps", o.eps());
  archive.Take("weight_decay", o.weight_decay());
  archive.Take("momentum", o.momentum());
  archive.Take("centered", o.centered());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::RMSpropParamState& s) {
  archive.Take("step", s.step());
  archive.Take("square_avg", s.square_avg());
  archive.Take("momentum_buffer", s.momentum_buffer());
  archive.Take("grad_avg", s.grad_avg());
}

template <class Options, class State>
class Adapter final : public OptimizerAdapter {
 public:
  Adapter(Optimizer& optimizer, std::string kind) : optimizer_(optimizer), kind_(std::move(kind)) {}

  std::string kind() const override { return kind_; }

  std::vector<std::vector<at::Tensor>> Groups() const override {
    std::vector<std::vector<at::Tensor>> groups;
    for (const auto& group : optimizer_.param_groups()) groups.push_back(group.params());
    return groups;
  }

  JsonValue::Object OptionsOf(size_t group) const override {
    JsonValue::Object values;
    Writer writer(values);
    Visit(writer, OptionsAt(group));
    return values;
  }

  Diagnostics SetOptions(size_t group, const JsonValue::Object& options) override {
    Reader reader(options);
    Visit(reader, OptionsAt(group));
    return std::move(reader).found();
  }

  std::optional<ParameterMemory> MemoryOf(const at::Tensor& parameter) const override {
    const auto found = optimizer_.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) return std::nullopt;
    ParameterMemory memory;
    Writer writer(memory.values, &memory.tensors);
    Visit(writer, static_cast<State&>(*found->second));
    return memory;
  }

  Diagnostics SetMemory(const at::Tensor& parameter, std::optional<ParameterMemory> memory) override {
    void* const key = parameter.unsafeGetTensorImpl();
    if (!memory) {
      optimizer_.state().erase(key);
      return {};
    }
    auto state = std::make_unique<State>();
    Reader reader(memory->values, &memory->tensors);
    Visit(reader, *state);
    optimizer_.state()[key] = std::move(state);
    return std::move(reader).found();
  }

 private:
  Options& OptionsAt(size_t group) const {
    return static_cast<Options&>(optimizer_.param_groups().at(group).options());
  }

  Optimizer& optimizer_;
  std::string kind_;
};

template <class Kind, class Options, class State>
std::unique_ptr<OptimizerAdapter> AdapterIf(Optimizer& optimizer, const char* kind) {
  if (typeid(optimizer) != typeid(Kind)) return nullptr;
  return std::make_unique<Adapter<Options, State>>(optimizer, kind);
}

}  // namespace

Result<std::unique_ptr<OptimizerAdapter>> AdapterOf(Optimizer& optimizer) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): five kinds with two classes each
  std::unique_ptr<OptimizerAdapter> adapter = AdapterIf<AdamW, AdamWOptions, AdamWParamState>(optimizer, "adamw");
  if (!adapter) adapter = AdapterIf<Adam, AdamOptions, AdamParamState>(optimizer, "adam");
  if (!adapter) adapter = AdapterIf<SGD, SGDOptions, SGDParamState>(optimizer, "sgd");
  if (!adapter) adapter = AdapterIf<Adagrad, AdagradOptions, AdagradParamState>(optimizer, "adagrad");
  if (!adapter) adapter = AdapterIf<RMSprop, RMSpropOptions, RMSpropParamState>(optimizer, "rmsprop");
  if (adapter) return adapter;
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "the optimizer's memory cannot be saved");
  d.declared = c10::demangle(typeid(optimizer).name());
  d.required = "Adam, AdamW, SGD, Adagrad or RMSprop";
  d.help = "an OptimizerAdapter of your own in TrainingState::adapter declares what is saved";
  return d;
}

}  // namespace moonshard

// Each optimizer's fields are listed once, in a Visit function that serves both directions: with a Writer the archive
// fills JSON and tensors, with a Reader it sets the fields. A field that is added to the list is saved and loaded, or
// neither. (LibTorch's own serialization writes one archive of a process's tensors, which no other mesh could read.)
//
// Kinds are compared exactly (typeid): a class derived from AdamW may have state of its own, which would be lost
// silently. Numbers and tensors are kept apart, because numbers are the same on every rank and go into the manifest,
// and tensors have the parameter's placement and go into the rank files.
#include "engine/train/training_state/optimizer_adapter.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "engine/core/base/text.h"
#include "engine/train/optim/adamw.h"

namespace moonshard {
namespace {

using torch::optim::Optimizer;

// What a number may be. LibTorch's constructors let no other pass, and with another one a step computes NaN; but the
// largest are ours: LibTorch throws where a number that it computes with has no float32.
struct Range {
  double least;
  double most;
  const char* text;
};
constexpr double kLargest = std::numeric_limits<float>::max();
constexpr Range kAnyNumber{-kLargest, kLargest, "a number that a float32 can hold"};
constexpr Range kNotNegative{0, kLargest, "a number of at least 0 that a float32 can hold"};
constexpr Range kBelowOne{0, 1 - std::numeric_limits<double>::epsilon() / 2, "a number from 0 to below 1"};
// Doubles have no exact larger number of steps, and the next step is one more.
constexpr Range kSteps{0, 9007199254740992, "an integer from 0 to 2^53"};

// Fields of an optimizer's options or memory under their names, in either direction. What is missing, of another kind
// or out of its range when read back is reported, and so are names that the optimizer does not have.
class Writer {
 public:
  explicit Writer(JsonValue::Object& values, std::map<std::string, at::Tensor>* tensors = nullptr)
      : values_(values), tensors_(tensors) {}

  void Take(const char* name, const double& value, const Range&) { values_[name] = value; }
  void Take(const char* name, const int64_t& value, const Range&) { values_[name] = value; }
  void Take(const char* name, const bool& value) { values_[name] = value; }
  void Take(const char* name, const std::tuple<double, double>& value, const Range&) {
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
  // `path` is where the values are, for messages. Without `tensors` those of a memory are not set.
  Reader(const JsonValue::Object& values, std::string path, std::map<std::string, at::Tensor>* tensors = nullptr)
      : values_(values), path_(std::move(path)), tensors_(tensors) {}

  void Take(const char* name, double& value, const Range& range) {
    const JsonValue* found = Find(name);
    if (Fits(found, range)) {
      value = found->AsDouble();
    } else {
      Say(name, found, range.text);
    }
  }
  void Take(const char* name, int64_t& value, const Range& range) {
    const JsonValue* found = Find(name);
    if (Fits(found, range) && found->is_int()) {
      value = found->AsInt();
    } else {
      Say(name, found, range.text);
    }
  }
  void Take(const char* name, bool& value) {
    const JsonValue* found = Find(name);
    if (found != nullptr && found->is_bool()) {
      value = found->AsBool();
    } else {
      Say(name, found, "true or false");
    }
  }
  void Take(const char* name, std::tuple<double, double>& value, const Range& range) {
    const JsonValue* found = Find(name);
    const bool pair = found != nullptr && found->is_array() && found->AsArray().size() == 2;
    if (pair && Fits(&found->AsArray()[0], range) && Fits(&found->AsArray()[1], range)) {
      value = {found->AsArray()[0].AsDouble(), found->AsArray()[1].AsDouble()};
    } else {
      Say(name, found, std::string("two numbers, each ") + range.text);
    }
  }
  void Take(const char* name, at::Tensor& value) {
    known_tensors_.insert(name);
    if (tensors_ == nullptr) return;
    const auto found = tensors_->find(name);
    value = found == tensors_->end() ? at::Tensor() : std::move(found->second);
  }

  // After the fields: `has`, the names of the tensors that are there, against those that the optimizer knows and needs.
  void CheckTensors(const std::vector<std::string>& has, const std::vector<std::string>& needed) {
    for (const std::string& name : needed) {
      if (std::ranges::find(has, name) == has.end())
        Say(name, nullptr, "a tensor, because the options of the parameter group require it");
    }
    for (const std::string& name : has) {
      if (!known_tensors_.contains(name)) SayUnknown(name, known_tensors_);
    }
  }
  void SayConflict(const std::string& declared, const std::string& required) {
    found_.push_back(
        MakeDiagnostic(Finding::kBadManifest, "the optimizer options of the checkpoint exclude each other"));
    found_.back().path = path_;
    found_.back().declared = declared;
    found_.back().required = required;
  }

  bool good() const { return found_.empty(); }
  Diagnostics Found() && {
    for (const auto& [name, value] : values_) {
      if (!known_.contains(name)) SayUnknown(name, known_);
    }
    return std::move(found_);
  }

 private:
  const JsonValue* Find(const char* name) {
    known_.insert(name);
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &found->second;
  }
  static bool Fits(const JsonValue* value, const Range& range) {
    return value != nullptr && value->is_number() && value->AsDouble() >= range.least &&
           value->AsDouble() <= range.most;
  }
  void Say(const std::string& name, const JsonValue* is, const std::string& required) {
    found_.push_back(
        MakeDiagnostic(Finding::kBadManifest, "the checkpoint has no valid '" + name + "' for the optimizer"));
    found_.back().path = path_;
    found_.back().declared = is != nullptr ? WriteJson(*is, 0) : "nothing";
    found_.back().required = required;
  }
  void SayUnknown(const std::string& name, const std::set<std::string>& known) {
    found_.push_back(MakeDiagnostic(Finding::kBadManifest, "the checkpoint has " + JsonQuoted(name) +
                                                               " for the optimizer, which does not have this name"));
    found_.back().path = path_;
    found_.back().required = Join(std::vector<std::string>(known.begin(), known.end()), ", ");
  }

  const JsonValue::Object& values_;
  std::string path_;
  std::map<std::string, at::Tensor>* tensors_;
  std::set<std::string> known_;
  std::set<std::string> known_tensors_;
  Diagnostics found_;
};

// What each optimizer has, once for both directions; and which tensors of a memory a step reads under its options.
template <class Archive, class Options>
void VisitAdamOptions(Archive& archive, Options& o) {
  archive.Take("lr", o.lr(), kNotNegative);
  archive.Take("betas", o.betas(), kBelowOne);
  archive.Take("eps", o.eps(), kNotNegative);
  archive.Take("weight_decay", o.weight_decay(), kNotNegative);
  archive.Take("amsgrad", o.amsgrad());
}
template <class Archive, class State>
void VisitAdamState(Archive& archive, State& s) {
  archive.Take("step", s.step(), kSteps);
  archive.Take("exp_avg", s.exp_avg());
  archive.Take("exp_avg_sq", s.exp_avg_sq());
  archive.Take("max_exp_avg_sq", s.max_exp_avg_sq());
}
std::vector<std::string> NeededByAdam(bool amsgrad) {
  if (!amsgrad) return {"exp_avg", "exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamWOptions& o) {
  VisitAdamOptions(archive, o);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamWParamState& s) {
  VisitAdamState(archive, s);
}
std::vector<std::string> Needed(const torch::optim::AdamWOptions& o) { return NeededByAdam(o.amsgrad()); }
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamOptions& o) {
  VisitAdamOptions(archive, o);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdamParamState& s) {
  VisitAdamState(archive, s);
}
std::vector<std::string> Needed(const torch::optim::AdamOptions& o) { return NeededByAdam(o.amsgrad()); }
template <class Archive>
void Visit(Archive& archive, torch::optim::SGDOptions& o) {
  archive.Take("lr", o.lr(), kNotNegative);
  archive.Take("momentum", o.momentum(), kNotNegative);
  archive.Take("dampening", o.dampening(), kAnyNumber);
  archive.Take("weight_decay", o.weight_decay(), kNotNegative);
  archive.Take("nesterov", o.nesterov());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::SGDParamState& s) {
  archive.Take("momentum_buffer", s.momentum_buffer());
}
std::vector<std::string> Needed(const torch::optim::SGDOptions& o) {
  if (o.momentum() == 0) return {};
  return {"momentum_buffer"};
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdagradOptions& o) {
  archive.Take("lr", o.lr(), kNotNegative);
  archive.Take("lr_decay", o.lr_decay(), kNotNegative);
  archive.Take("weight_decay", o.weight_decay(), kNotNegative);
  archive.Take("initial_accumulator_value", o.initial_accumulator_value(), kNotNegative);
  archive.Take("eps", o.eps(), kNotNegative);
}
template <class Archive>
void Visit(Archive& archive, torch::optim::AdagradParamState& s) {
  archive.Take("step", s.step(), kSteps);
  archive.Take("sum", s.sum());
}
std::vector<std::string> Needed(const torch::optim::AdagradOptions&) { return {"sum"}; }
template <class Archive>
void Visit(Archive& archive, torch::optim::RMSpropOptions& o) {
  archive.Take("lr", o.lr(), kNotNegative);
  archive.Take("alpha", o.alpha(), kNotNegative);
  archive.Take("eps", o.eps(), kNotNegative);
  archive.Take("weight_decay", o.weight_decay(), kNotNegative);
  archive.Take("momentum", o.momentum(), kNotNegative);
  archive.Take("centered", o.centered());
}
template <class Archive>
void Visit(Archive& archive, torch::optim::RMSpropParamState& s) {
  archive.Take("step", s.step(), kSteps);
  archive.Take("square_avg", s.square_avg());
  archive.Take("momentum_buffer", s.momentum_buffer());
  archive.Take("grad_avg", s.grad_avg());
}
std::vector<std::string> Needed(const torch::optim::RMSpropOptions& o) {
  std::vector<std::string> names = {"square_avg"};
  if (o.momentum() > 0) names.emplace_back("momentum_buffer");
  if (o.centered()) names.emplace_back("grad_avg");
  return names;
}

// Options that are valid one by one and not together.
template <class Options>
void CheckTogether(Reader&, const Options&) {}
void CheckTogether(Reader& reader, const torch::optim::SGDOptions& o) {
  if (!o.nesterov() || (o.momentum() > 0 && o.dampening() == 0)) return;
  reader.SayConflict(
      "nesterov with momentum " + WriteJson(o.momentum(), 0) + " and dampening " + WriteJson(o.dampening(), 0),
      "nesterov with a momentum above 0 and no dampening");
}

// The options as recorded; only sensible where nothing is found.
template <class Options>
Options ReadOptions(const JsonValue::Object& values, const std::string& path, Diagnostics& found) {
  Options options(0);
  Reader reader(values, path);
  Visit(reader, options);
  if (reader.good()) CheckTogether(reader, options);
  for (Diagnostic& d : std::move(reader).Found()) found.push_back(std::move(d));
  return options;
}

template <class Options, class State>
class AdapterFor final : public OptimizerAdapter {
 public:
  AdapterFor(Optimizer& optimizer, std::string kind) : optimizer_(optimizer), kind_(std::move(kind)) {}

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

  Diagnostics CheckRecord(const OptimizerRecord& record) const override {
    Diagnostics found;
    std::map<std::string, std::vector<std::string>> needed_of;  // by parameter
    for (size_t g = 0; g < record.groups.size(); ++g) {
      const std::vector<std::string> needed = Needed(ReadOptions<Options>(record.groups[g].options, NameOf(g), found));
      for (const std::string& parameter : record.groups[g].parameters) needed_of[parameter] = needed;
    }
    for (const MemoryRecord& memory : record.memories) {
      // The first parameter that needs these names stands for all that do.
      std::set<std::vector<std::string>> seen;
      for (const std::string& parameter : memory.parameters) {
        const std::vector<std::string> needed = std::move(needed_of[parameter]);
        needed_of.erase(parameter);
        if (!seen.insert(needed).second) continue;
        State state;
        Reader reader(memory.values, parameter);
        Visit(reader, state);
        reader.CheckTensors(memory.tensors, needed);
        for (Diagnostic& d : std::move(reader).Found()) found.push_back(std::move(d));
      }
    }
    // Adagrad makes its memories when it is made, and a step takes them for granted.
    if (std::is_same_v<Options, torch::optim::AdagradOptions> && !needed_of.empty()) {
      found.push_back(MakeDiagnostic(Finding::kBadManifest,
                                     "the checkpoint has no optimizer state for '" + needed_of.begin()->first + "'"));
      found.back().path = needed_of.begin()->first;
      found.back().required = "optimizer state for every parameter: a step of " + kind_ + " requires it";
    }
    return found;
  }

  Diagnostics SetOptions(size_t group, const JsonValue::Object& options) override {
    Diagnostics found;
    const Options read = ReadOptions<Options>(options, NameOf(group), found);
    if (found.empty()) OptionsAt(group) = read;
    return found;
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
    std::vector<std::string> names;
    for (const auto& [name, tensor] : memory->tensors) names.push_back(name);
    auto state = std::make_unique<State>();
    Reader reader(memory->values, "", &memory->tensors);
    Visit(reader, *state);
    if (const Options* options = OptionsOfParameter(parameter)) reader.CheckTensors(names, Needed(*options));
    Diagnostics found = std::move(reader).Found();
    if (found.empty()) optimizer_.state()[key] = std::move(state);
    return found;
  }

 private:
  static std::string NameOf(size_t group) { return "optimizer.groups[" + std::to_string(group) + "]"; }

  Options& OptionsAt(size_t group) const {
    return static_cast<Options&>(optimizer_.param_groups().at(group).options());
  }

  // nullptr where it is in no group.
  const Options* OptionsOfParameter(const at::Tensor& parameter) const {
    for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      const std::vector<at::Tensor>& in_group = optimizer_.param_groups()[g].params();
      if (std::ranges::any_of(in_group, [&](const at::Tensor& t) { return t.is_same(parameter); }))
        return &OptionsAt(g);
    }
    return nullptr;
  }

  Optimizer& optimizer_;
  std::string kind_;
};

template <class Kind, class Options, class State>
std::unique_ptr<OptimizerAdapter> AdapterIf(Optimizer& optimizer, const char* kind) {
  if (typeid(optimizer) != typeid(Kind)) return nullptr;
  return std::make_unique<AdapterFor<Options, State>>(optimizer, kind);
}

}  // namespace

Diagnostics OptimizerAdapter::CheckRecord(const OptimizerRecord& /*record*/) const { return {}; }

Result<std::unique_ptr<OptimizerAdapter>> AdapterOf(Optimizer& optimizer) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): five kinds with two classes each
  std::unique_ptr<OptimizerAdapter> adapter =
      AdapterIf<torch::optim::AdamW, AdamWOptions, AdamWParamState>(optimizer, "adamw");
  // Its state is that of torch::optim::AdamW, so a run may go on with either.
  if (!adapter) adapter = AdapterIf<moonshard::AdamW, AdamWOptions, AdamWParamState>(optimizer, "adamw");
  if (!adapter) adapter = AdapterIf<Adam, AdamOptions, AdamParamState>(optimizer, "adam");
  if (!adapter) adapter = AdapterIf<SGD, SGDOptions, SGDParamState>(optimizer, "sgd");
  if (!adapter) adapter = AdapterIf<Adagrad, AdagradOptions, AdagradParamState>(optimizer, "adagrad");
  if (!adapter) adapter = AdapterIf<RMSprop, RMSpropOptions, RMSpropParamState>(optimizer, "rmsprop");
  if (adapter) return adapter;
  Diagnostic d = MakeDiagnostic(Finding::kNotSupported, "training checkpoints do not support this optimizer");
  d.declared = c10::demangle(typeid(optimizer).name());
  d.required = "Adam, AdamW, SGD, Adagrad or RMSprop";
  d.help = "write an OptimizerAdapter for this optimizer and set TrainingState::adapter";
  return d;
}

}  // namespace moonshard

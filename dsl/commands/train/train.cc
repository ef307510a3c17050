#include "dsl/commands/train/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/stack.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "dsl/commands/cli/launch.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/train/batches.h"
#include "dsl/commands/train/loss.h"
#include "dsl/commands/train/report.h"
#include "dsl/commands/train/run_watch.h"
#include "dsl/commands/train/saves.h"
#include "dsl/commands/train/setup.h"
#include "dsl/commands/train/stop.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::vector<std::shared_ptr<AxisGroup>> GroupsOf(const DeviceMesh& mesh) {
  std::vector<std::shared_ptr<AxisGroup>> groups;
  for (const MeshAxis axis : kMeshAxes) {
    if (mesh.shape().size(axis) > 1) groups.push_back(AxisGroup::Make(mesh, axis));
  }
  return groups;
}

class TrainingRun {
 public:
  // The ranks; the kind of the data; the files of the model; the data; the model without storage, sharded under the
  // plan; its loss; its optimizer. In this order: what is cheap and fails often, an option or a file, goes before what
  // takes memory and time. Parameters get storage only as shards. Agree compares the options and the data on all ranks
  // before the first step: a rank with another batch size would enter collectives of another number or shape, and wait
  // for the others without a message.
  TrainingRun(const TrainVerb& verb, const RunWatch& watch)
      : verb_(verb),
        watch_(watch),
        mesh_(Join()),
        world_(mesh_),
        groups_(GroupsOf(mesh_)),
        kind_(watch_.In("opening the data", [&] { return ResolveData(verb_, mesh_); })),
        folder_(watch_.In("opening the model", [&] { return OpenFolder(verb_); })),
        data_(watch_.In("opening the data",
                        [&] { return OpenData(kind_, verb_.data, verb_, mesh_, folder_, verb_.micro_batches); })),
        lm_(watch_.In("sharding the model", [&] { return MakeModel(kind_, verb_, folder_, mesh_); })),
        model_(*lm_.model),
        loss_(MakeLoss(kind_, verb_, lm_.net, model_)),
        optimizer_(MakeOptimizer(verb_, model_)),
        schedule_(ScheduleOf(verb_)),
        compute_type_(ComputeType(verb_)),
        ahead_(verb_.ahead.value_or(mesh_.device().is_cpu() ? 0 : 1)),
        report_(verb_, mesh_, world_, data_.unit()),
        saves_(verb_, mesh_, model_, folder_, lm_.net.recipes, optimizer_, data_, report_) {
    report_.Warn(model_.plan().findings);
    if (const auto program = std::dynamic_pointer_cast<Program>(lm_.net.module)) {
      report_.Warn(NotKeptByTraining(program->exported()));
    }
    report_.Warn(CheckDocuments(lm_.net, data_));
    if (!verb_.eval_data.empty()) held_out_.emplace(OpenData(kind_, verb_.eval_data, verb_, mesh_, folder_, 1));
    CheckExamples(mesh_, lm_.net, loss_, data_, held_out_ ? &*held_out_ : nullptr);
    Agree(mesh_, "the training run",
          Describe(verb_) + "\n" + data_.Position() + "\n" + (held_out_ ? held_out_->Position() : "") + "\n--ahead " +
              std::to_string(ahead_));
    at::manual_seed(verb_.seed + static_cast<uint64_t>(DrawPlace()));
    watch_.Enter("loading the weights");
    if (const std::optional<int64_t> resumed = saves_.Resume()) {
      step_ = *resumed;
    } else {
      report_.Warn(FirstWeights(verb_, folder_, lm_.net, model_));
    }
  }

  // Ranks that share their rows draw alike; those of cp have other tokens of them where the plan shards the sequence.
  int64_t DrawPlace() const {
    if (!model_.plan().context_parallel) return data_.place();
    return data_.place() * mesh_.shape().size(MeshAxis::kCp) + mesh_.coordinate(MeshAxis::kCp);
  }

  int Go() {
    report_.Begin();
    StopRequest::Begin();
    while (step_ < verb_.steps && stopped_ == 0) {
      watch_.Enter("step " + std::to_string(step_ + 1), /*reported=*/false);
      Step();
      const bool evaluates = verb_.eval_every > 0 && step_ % verb_.eval_every == 0;
      const bool saves = verb_.save_every > 0 && step_ % verb_.save_every == 0;
      SettleAllBut(evaluates || saves || !checked_ || !taken_.back().values.defined() ? 0 : ahead_);
      if (!checked_) CheckCalls();
      if (verb_.check_replicas > 0 && step_ % verb_.check_replicas == 0) CompareReplicas();
      if (evaluates) Evaluate();
      if (saves) saves_.Begin(step_);
      // All ranks stop after the same step, whichever received the signal.
      stopped_ = static_cast<int>(world_.Max(StopRequest::Asked(), CollectiveLabel("whether to stop")));
    }
    StopRequest::Heard();
    SettleAllBut(0);
    watch_.Enter("saving after step " + std::to_string(step_), /*reported=*/false);
    saves_.End(step_);
    if (evaluated_ != step_ && stopped_ == 0) Evaluate();
    report_.End(model_, step_, stopped_);
    watch_.Done();
    mesh_.Close();
    if (stopped_ != 0) return kExitAsked + stopped_;
    return report_.log_lost() ? kExitFailed : kExitSuccess;
  }

 private:
  DeviceMesh Join() const {
    DeviceMesh mesh = watch_.In("joining the other ranks", [&] { return OpenMesh(verb_); });
    watch_.Attach(mesh);
    return mesh;
  }

  // The gradients of every micro-batch, their norm, the update. The loss of each micro-batch is a mean over its counted
  // labels. Weighted by its fraction of the mean number of labels of a rank, and averaged over the ranks, it adds up to
  // the mean over the labels of the batch, for any division of the batch. Only the last backward reduces over the
  // data-parallel ranks: a reduction is linear, so one of the local sum replaces one for each micro-batch.
  // A step is skipped if the mean loss or the norm of all gradients is not finite. Both numbers are equal on all ranks,
  // so all ranks skip the same steps; a decision from local gradients would leave replicas with different parameters. A
  // skipped step counts as taken: its rows are used, and the schedule continues.
  // The loss of the routers is of the tokens of a micro-batch on all ranks, and is not weighted by labels; that of the
  // step is the mean over the micro-batches.
  void Step() {
    Taken& taken = taken_.emplace_back();
    StepNumbers& numbers = taken.numbers;
    Mark(taken.begun);
    numbers.units = data_.units_per_step();
    numbers.learning_rate = LearningRate(schedule_, step_);
    SetLearningRate(optimizer_, numbers.learning_rate);
    model_.ClearCounts();
    loss_.ClearCounts();

    optimizer_.zero_grad();
    std::vector<Batch> batches;
    ReadTogether([&] {
      for (int64_t micro = 0; micro < verb_.micro_batches; ++micro) batches.push_back(data_.Next(micro));
    });
    std::vector<at::Tensor> losses;
    std::vector<at::Tensor> router_losses;
    double counted = 0;
    for (const Batch& batch : batches) counted += static_cast<double>(batch.counted);
    if (!data_.even()) counted = world_.Mean(counted, CollectiveLabel("labels"));
    for (int64_t micro = 0; micro < verb_.micro_batches; ++micro) {
      model_.SetGradientSync(micro + 1 == verb_.micro_batches);  // the last backward reduces the gradients
      const Batch& batch = batches[static_cast<size_t>(micro)];
      const at::Tensor mean = LossOf(batch);
      const at::Tensor part = batch.counted == 0 ? mean * 0 : mean / (counted / static_cast<double>(batch.counted));
      const std::optional<at::Tensor> of_routers = loss_.OfRouters();
      if (of_routers) router_losses.push_back(of_routers->detach().to(at::kDouble));
      const at::Tensor whole = of_routers ? part + *of_routers / verb_.micro_batches : part;
      whole.backward();
      losses.push_back(part.detach().to(at::kDouble));
      StopRequest::Progress();
    }
    taken.unlabelled = counted == 0;
    const at::Tensor loss = at::stack(losses).sum();
    const at::Tensor of_routers = router_losses.empty() ? at::Tensor() : at::stack(router_losses).mean();
    if (DeviceDecides()) {
      UpdateAhead(taken, loss, of_routers);
    } else {
      Update(taken, loss, of_routers);
    }

    data_.EndStep();
    numbers.step = ++step_;
    const CollectiveCount of_model = Total(model_.counts());
    const CollectiveCount of_loss = Total(loss_.counts());
    numbers.collectives = {of_model.count + of_loss.count, of_model.bytes + of_loss.bytes};
    CountLoads(numbers);
  }

  // A step that the device may still be computing.
  struct Taken {
    StepNumbers numbers;
    bool unlabelled = false;  // no label of the batch counts
    // Of a step that the device decided on, in host memory, float64: the loss of this rank, that of the routers, the
    // norm, whether it was skipped, and the norms of the gradients by parameter. Undefined: `numbers` is complete.
    at::Tensor values;
    // The device begins the step; `values` are there. None on a CPU.
    std::optional<c10::Event> begun;
    std::optional<c10::Event> copied;
    // On the host: the step begins; on a CPU, it has ended.
    Clock::time_point queued = Clock::now();
    Clock::time_point done = {};
  };

  // The time of a step that the device decided on: from the end of the step before it, or, behind other work, from its
  // own begin. In the time of the device, which is later than that of the host.
  void Measure(Taken& taken) {
    if (taken.copied) {
      const c10::Event& from = device_end_ ? *device_end_ : *taken.begun;
      taken.numbers.seconds = from.elapsedTime(*taken.copied) / 1000;
      device_end_ = std::move(taken.copied);
    } else {
      taken.numbers.seconds = Seconds(taken.done - host_end_.value_or(taken.queued));
      host_end_ = taken.done;
    }
  }

  // The next step is measured from its own begin.
  void MeasureAnew() {
    device_end_.reset();
    host_end_.reset();
  }

  // Makes an event that measures time, behind all work that is queued on the device.
  void Mark(std::optional<c10::Event>& event) const {
    const c10::Device device = mesh_.device();
    if (device.is_cpu()) return;
    event.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }

  // Reads the loss and the norm, and then makes the update or skips it.
  void Update(Taken& taken, const at::Tensor& loss, const at::Tensor& of_routers) {
    SettleAllBut(1);  // this step is the newest
    MeasureAnew();
    StepNumbers& numbers = taken.numbers;
    // The norm is read before the losses: a read waits for the GPU, and the kernels of the norm should not.
    numbers.grad_norm = watch_.OnDevice(mesh_, "the norm of the gradients", [&] {
      return verb_.clip > 0 ? ClipGradNorm(model_, verb_.clip) : GradNorm(model_);
    });
    const auto of_rank = watch_.OnDevice(mesh_, "the loss of the step", [&] { return loss.item<double>(); });
    if (of_routers.defined()) numbers.router_loss = of_routers.item<double>();
    numbers.loss = world_.Mean(taken.unlabelled ? std::nan("") : of_rank, CollectiveLabel("loss"));
    numbers.skipped = !std::isfinite(numbers.loss) || !std::isfinite(numbers.grad_norm);
    if (!numbers.skipped) optimizer_.step();
    if (ahead_ > 0) numbers.seconds = Seconds(Clock::now() - taken.queued);
  }

  // Whether the device can decide on the step, on all ranks: the two ways exchange numbers at different times, and
  // gradients are a rank's own.
  bool DeviceDecides() const {
    if (ahead_ == 0) return false;
    const bool can = GradientsOnDevice(model_) && optimizer_.CanFuse(/*any_device=*/true);
    return world_.Max(can ? 0 : 1, CollectiveLabel("whether the device decides on the step")) == 0;
  }

  // Leaves both to the device, which skips the update where the norm or the loss of any rank is not finite;
  // SettleAllBut reads the numbers when the device has come to them.
  void UpdateAhead(Taken& taken, const at::Tensor& loss, const at::Tensor& of_routers) {
    const DeviceNorm norm = verb_.clip > 0 ? ClipGradNormOnDevice(model_, verb_.clip) : GradNormOnDevice(model_);
    const at::NoGradGuard no_grad;
    const at::Tensor bad = at::isfinite(norm.norm).logical_and(at::isfinite(loss)).logical_not().to(at::kFloat);
    const at::Tensor skip = taken.unlabelled ? at::ones_like(bad) : OnAnyRank(bad);
    optimizer_.FusedStepUnless(skip);
    const at::Tensor routers = of_routers.defined() ? of_routers : at::zeros_like(norm.norm);
    const at::Tensor values =
        at::cat({at::stack({loss, routers, norm.norm, skip.to(at::kDouble)}), norm.of_parameters});
    taken.numbers.router_loss = of_routers.defined() ? std::optional(0.0) : std::nullopt;
    if (values.is_cpu()) {
      taken.values = values;
      taken.done = Clock::now();
      return;
    }
    taken.values = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
    taken.values.copy_(values, /*non_blocking=*/true);
    Mark(taken.copied);
  }

  // 1 on all ranks where `flag`, a float32 scalar on the mesh's device, is 1 on any.
  at::Tensor OnAnyRank(at::Tensor flag) const {
    static const CollectiveLabel label("whether the loss is finite");
    CollectiveUse use;
    use.direction = Direction::kBackward;
    use.label = &label;
    for (const std::shared_ptr<AxisGroup>& group : groups_) flag = group->AllGather(flag.view({1}), use).max();
    return flag;
  }

  // Completes and reports the oldest steps, until `left` of them are not settled.
  void SettleAllBut(int64_t left) {
    while (static_cast<int64_t>(taken_.size()) > left) {
      Taken& taken = taken_.front();
      StepNumbers& numbers = taken.numbers;
      at::Tensor norms;
      if (taken.values.defined()) {
        if (taken.copied && !taken.copied->query()) {
          watch_.OnDevice(mesh_, "the end of the step on the device", [&] { taken.copied->synchronize(); });
        }
        mesh_.CheckPeers();
        Measure(taken);
        const auto* values = taken.values.const_data_ptr<double>();
        numbers.loss = world_.Mean(taken.unlabelled ? std::nan("") : values[0], CollectiveLabel("loss"));
        if (numbers.router_loss) numbers.router_loss = values[1];
        numbers.grad_norm = values[2];
        numbers.skipped = values[3] != 0;
        norms = taken.values.slice(0, 4);
        optimizer_.Settle(numbers.skipped);
      }
      CountSkips(taken, norms);
      report_.Step(numbers);
      taken_.pop_front();
    }
  }

  // How evenly the router spread the tokens of the step over the experts of all layers and ranks. Ranks of tp have the
  // same numbers, which does not change a ratio; the dropped tokens are those of the first of them.
  void CountLoads(StepNumbers& numbers) const {
    const CompiledPlan& plan = model_.plan();
    if (!plan.exchanges_tokens()) return;
    int64_t largest = 0;
    int64_t received = 0;
    int64_t experts = 0;
    int64_t dropped = 0;
    bool drops = false;
    for (const ExpertLoad& load : model_.expert_loads()) {
      for (const int64_t rows : load.received) {
        largest = std::max(largest, rows);
        received += rows;
      }
      const ModuleLayouts& layouts = plan.LayoutsOf(static_cast<size_t>(plan.tree->Find(load.path)));
      experts += layouts.experts * (plan.mesh.world_size() / plan.mesh.size(MeshAxis::kEp));
      drops = drops || layouts.exchange->capacity > 0;
      if (mesh_.coordinate(MeshAxis::kTp) == 0) dropped += load.dropped;
    }
    const CollectiveLabel label("the loads of experts");
    const auto sum = [&](int64_t mine) {
      const std::vector<int64_t> all = world_.All(mine, label);
      return std::accumulate(all.begin(), all.end(), int64_t{0});
    };
    largest = world_.Max(largest, label);
    received = sum(received);
    if (drops) numbers.dropped = sum(dropped);
    if (received > 0) {
      numbers.expert_load = static_cast<double>(largest) * static_cast<double>(experts) / static_cast<double>(received);
    }
  }

  // Runs `read`, which reads data, and throws on every rank if it throws on any: otherwise the other ranks would wait
  // in the collectives of the forward. Success is agreed with one all-reduced flag; only errors go through the store.
  // The steps before are reported first.
  template <class Read>
  void ReadTogether(const Read& read) {
    Diagnostics errors;
    try {
      read();
    } catch (const PlanError& error) {
      errors = error.diagnostics();
    }
    const int64_t any = world_.Max(errors.empty() ? 0 : 1, CollectiveLabel("whether the data is read"));
    if (any == 0) return;
    std::erase_if(taken_, [](const Taken& taken) { return taken.numbers.step == 0; });  // the one that begins
    SettleAllBut(0);
    ThrowTogether(mesh_, "read the data", errors);
  }

  // Before a checkpoint is saved: what differs between ranks is not the model that was trained.
  void CompareReplicas() {
    const Diagnostics drift = FindDrift(model_);
    const int64_t any = world_.Max(drift.empty() ? 0 : 1, CollectiveLabel("whether replicas are equal"));
    if (any == 0) return;
    SettleAllBut(0);
    ThrowTogether(mesh_, "compare the replicas of step " + std::to_string(step_), drift);
  }

  at::Tensor LossOf(const Batch& batch) const {
    const nn::Autocast autocast(mesh_.device().type(), compute_type_);
    return loss_.Mean(batch);
  }

  // The mean over every counted label of the held-out data: the sum of losses over the number of labels, both over all
  // ranks.
  // A mean of means would weigh the rows of the last, smaller part more than the others.
  void Evaluate() {
    evaluated_ = step_;
    if (!held_out_) return;
    watch_.Enter("evaluating after step " + std::to_string(step_), /*reported=*/false);
    const at::NoGradGuard no_grad;
    const nn::Autocast autocast(mesh_.device().type(), compute_type_);
    lm_.net.module->eval();
    double sum = 0;
    double labels = 0;
    for (int64_t part = 0; part < held_out_->parts(); ++part) {
      Batch batch;
      ReadTogether([&] { batch = held_out_->Part(part); });
      const auto [of_part, labels_of_part] = loss_.Sum(batch);
      sum += of_part;
      labels += static_cast<double>(labels_of_part);
      StopRequest::Progress();
    }
    lm_.net.module->train();
    MeasureAnew();
    const CollectiveLabel label("held-out loss");
    report_.Eval(step_, world_.Mean(sum, label) / world_.Mean(labels, label));
  }

  // A loss or norm that is not finite: the step is skipped and reported with the first parameter that is not finite.
  // `norms`: of the gradients, if the device decided on the step and the gradients may be those of the next one.
  void CountSkips(const Taken& taken, const at::Tensor& norms) {
    const StepNumbers& numbers = taken.numbers;
    skips_ = numbers.skipped ? skips_ + 1 : 0;
    if (!numbers.skipped) return;
    const NonFinite found = norms.defined() ? FindNonFinite(model_, world_, norms) : FindNonFinite(model_, world_);
    Diagnostic d = MakeDiagnostic(Finding::kNotFinite, "step " + std::to_string(numbers.step) + " has loss " +
                                                           std::to_string(numbers.loss) + " and a gradient norm of " +
                                                           std::to_string(numbers.grad_norm));
    d.path = found.path;
    d.declared = taken.unlabelled     ? "no label of the batch counts: the loss is a mean over nothing"
                 : found.path.empty() ? ""
                 : found.in_parameter ? "this parameter has a value that is not finite"
                                      : "the gradient of this parameter is not finite";
    d.required = "a finite loss and finite gradients; the step is skipped, and no parameter changes";
    if (skips_ > verb_.skips) {
      d.message += "; more than " + std::to_string(verb_.skips) + " consecutive steps were skipped";
      d.help = "a lower --lr, a longer --warmup, or a larger --skips";
      throw PlanError({d});
    }
    d.severity = Severity::kWarning;
    report_.Warn({d});
  }

  // Planned modules that the first step never called: a redistribution of such a module never runs. The head is not one
  // of them with --loss-chunk, where the loss uses its weight.
  void CheckCalls() {
    checked_ = true;
    Diagnostics findings = model_.Findings();
    if (verb_.loss_chunk > 0) {
      std::erase_if(findings, [&](const Diagnostic& d) { return d.path == lm_.net.head_path; });
    }
    if (HasErrors(findings)) throw PlanError(findings);
    report_.Warn(findings);
  }

  TrainVerb verb_;  // with what the data decides (ResolveData)
  const RunWatch& watch_;
  const StopRequest stop_{std::chrono::seconds(verb_.grace)};
  DeviceMesh mesh_;
  World world_;
  std::vector<std::shared_ptr<AxisGroup>> groups_;  // of all axes of several ranks
  DataKind kind_;
  ModelFolder folder_;
  Batches data_;
  std::optional<Batches> held_out_;
  ShardedLm lm_;
  AppliedPlan& model_;
  BatchLoss loss_;
  AdamW optimizer_;
  Schedule schedule_;
  c10::ScalarType compute_type_;
  int64_t ahead_;
  Report report_;
  Saves saves_;
  int64_t step_ = 0;  // taken so far
  int64_t evaluated_ = -1;
  bool checked_ = false;
  int64_t skips_ = 0;                          // in a row
  std::optional<c10::Event> device_end_;       // of the step that was settled last
  std::optional<Clock::time_point> host_end_;  // likewise
  std::deque<Taken> taken_;                    // the newest steps, whose numbers are not reported yet
  int stopped_ = 0;                            // the signal that stopped the run
};

}  // namespace

// What a step throws becomes known to the other ranks before the run is destroyed, which may wait for a save.
int RunTrain(const TrainVerb& verb) {
  const RunWatch watch(verb);
  return watch.Guard([&] {
    TrainingRun run(verb, watch);
    return watch.Guard([&] { return run.Go(); });
  });
}

}  // namespace moonshard

#include "dsl/commands/train/report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include <c10/core/CachingDeviceAllocator.h>

namespace moonshard {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kTerminalSeconds = 0.1;  // a line is not rewritten more often
constexpr const char* kFormatVersion = "1.0";

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

JsonValue::Array List(const std::vector<int64_t>& numbers) { return {numbers.begin(), numbers.end()}; }

c10::CachingAllocator::Stat AllocatedBytes(c10::Device gpu) {
  const auto total = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::getDeviceAllocator(gpu.type())->getDeviceStats(gpu.index()).allocated_bytes[total];
}

// A log that a full disk or a kill cut within a line: what is appended would become a part of that line.
bool EndsWithinALine(const std::string& path) {
  const Result<File> file = File::Open(path);
  char last = '\n';
  return file.ok() && file.value().bytes() > 0 && !file.value().Read(file.value().bytes() - 1, &last, 1) &&
         last != '\n';
}

}  // namespace

CollectiveCount Total(const CollectiveCounts& counts) {
  CollectiveCount total;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    for (const CollectiveKind kind : kCollectiveKinds) {
      total.count += counts.of(direction, kind).count;
      total.bytes += counts.of(direction, kind).bytes;
    }
  }
  return total;
}

int64_t MemoryInUse(c10::Device device) {
  if (!device.is_cpu()) return AllocatedBytes(device).current;
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t PeakMemory(c10::Device gpu) { return AllocatedBytes(gpu).peak; }

Report::Report(const TrainVerb& verb, const DeviceMesh& mesh, const World& world, std::string unit)
    : verb_(verb),
      world_(world),
      device_(mesh.device()),
      unit_(std::move(unit)),
      speaks_(mesh.rank() == 0),
      terminal_(isatty(STDERR_FILENO) == 1 || std::getenv("MOONSHARD_TERMINAL") != nullptr) {
  if (!speaks_ || verb.log.empty()) return;
  const bool cut = EndsWithinALine(verb.log);
  log_.open(verb.log, std::ios::app);
  if (cut) log_ << "\n" << std::flush;
  if (log_) return;
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write the log");
  d.path = verb.log;
  throw PlanError({d});
}

void Report::Begin() { begin_ = last_ = Clock::now(); }

void Report::Write(const JsonValue& line) {
  if (!log_.is_open()) return;
  log_ << WriteJson(line, 0) << std::endl;  // NOLINT(performance-avoid-endl): read while it grows
  if (log_) return;
  log_.close();
  log_lost_ = true;
  Diagnostic d =
      MakeDiagnostic(Finding::kWriteFailed, "cannot write the log; the log ends here, and the run continues");
  d.path = verb_.log;
  Warn({d});
}

void Report::ClearLine() const {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void Report::PrintFindings(const std::string& text) {
  if (!speaks_) return;
  ClearLine();
  std::fprintf(stderr, "%s\n", Visible(text).c_str());
}

void Report::Resumed(int64_t step, const MeshShape& saved_on, const std::vector<Change>& changes) {
  PrintFindings("resumed after step " + std::to_string(step) + ", saved on " + saved_on.ToString());
  JsonValue::Array list;
  for (const Change& change : changes) {
    PrintFindings("resumed with " + change.option + " " + WriteJson(change.now, 0) + ", which was " +
                  WriteJson(change.saved, 0));
    list.push_back(JsonValue::Object{{"option", change.option}, {"saved", change.saved}, {"now", change.now}});
  }
  Write(JsonValue::Object{
      {"event", "resume"}, {"step", step}, {"mesh", saved_on.ToString()}, {"changes", std::move(list)}});
}

void Report::Warn(const Diagnostics& warnings) {
  if (!speaks_ || warnings.empty()) return;
  ClearLine();
  moonshard::PrintFindings(warnings, verb_.findings_output);
}

// The memory of each rank is gathered by a collective, so the condition for it uses only what is the same on all ranks:
// a condition on the terminal or the log, which only rank 0 has, would leave rank 0 alone in the collective. Standard
// error gets a line per `log_every` steps, or one line that is rewritten if it is a terminal; the log file gets every
// step.
void Report::Step(const StepNumbers& numbers) {
  static const CollectiveLabel label("memory of each rank");
  const Clock::time_point now = Clock::now();
  const double seconds = numbers.seconds.value_or(Seconds(now - last_));
  last_ = now;
  if (units_ == 0) first_step_ = numbers.step - 1;
  units_ += numbers.units;
  skipped_ += numbers.skipped ? 1 : 0;
  newest_ = numbers;
  // The first step is the one that makes the optimizer's memory.
  const bool asks = memory_.empty() || numbers.step % verb_.log_every == 0 || numbers.step == verb_.steps;
  if (asks) {
    memory_ = world_.All(MemoryInUse(device_), label);
    if (!device_.is_cpu()) peak_memory_ = world_.All(PeakMemory(device_), label);
  }
  if (!speaks_) return;
  Show(numbers, seconds);
  JsonValue::Object line = {{"event", "step"},
                            {"step", numbers.step},
                            {"loss", numbers.loss},
                            {"grad_norm", numbers.grad_norm},
                            {"learning_rate", numbers.learning_rate},
                            {"skipped", numbers.skipped},
                            {unit_, numbers.units},
                            {"seconds", seconds},
                            {Rate(), static_cast<double>(numbers.units) / seconds},
                            {"memory_bytes", List(memory_)},
                            {"collectives", numbers.collectives.count},
                            {"collective_bytes", numbers.collectives.bytes}};
  if (!peak_memory_.empty()) line["peak_memory_bytes"] = List(peak_memory_);
  if (numbers.router_loss) line["router_loss"] = *numbers.router_loss;
  if (numbers.expert_load) {
    line["expert_load"] = *numbers.expert_load;
    line["dropped_tokens"] = numbers.dropped;
  }
  Write(std::move(line));
}

void Report::Show(const StepNumbers& numbers, double seconds) {
  const bool last = numbers.step == verb_.steps;
  if (!terminal_ && !last && numbers.step % verb_.log_every != 0 && numbers.step != first_step_ + 1) return;
  if (terminal_ && !last && Seconds(Clock::now() - shown_) < kTerminalSeconds) return;
  shown_ = Clock::now();
  std::fprintf(stderr,
               "%sstep %lld/%lld  loss %.4f  norm %.3f  lr %.2e  %.0f %s/s  memory %.0f MB (largest rank)  %lld "
               "collectives, %.2f MB%s",
               terminal_ ? "\r\033[K" : "", static_cast<long long>(numbers.step), static_cast<long long>(verb_.steps),
               numbers.loss, numbers.grad_norm, numbers.learning_rate, static_cast<double>(numbers.units) / seconds,
               unit_.c_str(), static_cast<double>(std::ranges::max(memory_)) / 1e6,
               static_cast<long long>(numbers.collectives.count), static_cast<double>(numbers.collectives.bytes) / 1e6,
               terminal_ && !last ? "" : "\n");
}

void Report::Eval(int64_t step, double loss) {
  eval_loss_ = loss;
  last_ = Clock::now();  // no part of the next step
  if (!speaks_) return;
  char text[64];
  std::snprintf(text, sizeof(text), "step %lld: held-out loss %.4f", static_cast<long long>(step), loss);
  PrintFindings(text);
  Write(JsonValue::Object{{"event", "eval"}, {"step", step}, {"loss", loss}});
}

void Report::Saved(int64_t step) {
  saved_ = step;
  Write(JsonValue::Object{{"event", "save"}, {"step", step}});
}

void Report::End(const AppliedPlan& model, int64_t step, int stopped) {
  const double seconds = Seconds(Clock::now() - begin_);
  if (!speaks_) return;
  ClearLine();
  if (stopped != 0)
    PrintFindings("stopped after step " + std::to_string(step) + " by signal " + std::to_string(stopped));
  const CollectiveCount& total = newest_.collectives;
  JsonValue::Object summary = {
      {"event", "end"},
      {"step", step},
      {"steps_taken", units_ > 0 ? step - first_step_ : 0},
      {"skipped_steps", skipped_},
      {"loss", units_ > 0 ? JsonValue(newest_.loss) : JsonValue()},
      {"router_loss", newest_.router_loss ? JsonValue(*newest_.router_loss) : JsonValue()},
      {"loss_of", verb_.loss == "model" ? "model" : "next tokens"},
      {"eval_loss", eval_loss_ ? JsonValue(*eval_loss_) : JsonValue()},
      {unit_, units_},
      {"seconds", seconds},
      {Rate(), static_cast<double>(units_) / seconds},
      {"memory_bytes", List(memory_)},
      {"collectives", total.count},
      {"collective_bytes", total.bytes},
      {"plan", model.plan().plan->name},
      {"plan_hash", model.plan().Hash()},
      {"mesh", model.plan().mesh.ToString()},
      {"saved_step", saved_ ? JsonValue(*saved_) : JsonValue()},
      {"stopped", stopped == 0 ? JsonValue() : JsonValue("SIG" + std::string(sigabbrev_np(stopped)))}};
  if (!peak_memory_.empty()) summary["peak_memory_bytes"] = List(peak_memory_);
  Write(summary);
  summary.erase("event");
  summary["format_version"] = kFormatVersion;
  if (verb_.json) std::cout << VisibleJson(WriteJson(summary, 2)) << "\n";
}

}  // namespace moonshard

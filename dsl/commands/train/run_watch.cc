#include "dsl/commands/train/run_watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <thread>

#include <c10/util/Exception.h>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/commands/cli/verbs.h"

namespace moonshard {
namespace {

constexpr double kMostSeconds = 1e6;

// The seconds in a variable of the environment, if it is set and is a number from 0.
std::optional<std::chrono::milliseconds> SecondsIn(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !(seconds >= 0)) return std::nullopt;
  return std::chrono::milliseconds(static_cast<int64_t>(std::min(seconds, kMostSeconds) * 1000));
}

// A progress line may be on the terminal.
void ClearTerminalLine() {
  if (isatty(STDERR_FILENO) == 1) std::fputs("\r\033[K", stderr);
}

[[noreturn]] void EndWith(const FailedRank& failure, const TrainVerb& verb) {
  ClearTerminalLine();
  PrintFindings({failure.ToDiagnostic()}, verb.findings_output);
  std::cout.flush();
  _exit(failure.exit_code);
}

// The longest time for this rank to end after its own failure. A save in the background may wait for ranks that are
// gone, until the mesh's timeout.
constexpr std::chrono::seconds kUnwinds{10};

void EndAfterAll(const std::string& message, int exit_code) {
  std::thread([message, exit_code] {
    std::this_thread::sleep_for(kUnwinds);
    ClearTerminalLine();
    std::fprintf(stderr, "moonshard: %s\n", Visible(message).c_str());
    std::cout.flush();
    _exit(exit_code);
  }).detach();
}

// The first error in one line.
std::string LineOf(const Diagnostics& found) {
  const auto error = std::ranges::find(found, Severity::kError, &Diagnostic::severity);
  if (error == found.end()) return "";
  std::string line = error->ToText();
  std::ranges::replace(line, '\n', ' ');
  return line;
}

}  // namespace

RunWatch::RunWatch(const TrainVerb& verb) : verb_(verb) {
  const Result<MeshShape> shape = MeshShape::Parse(verb.model.mesh);
  if (!shape.ok()) return;
  RankWatchOptions options;
  const std::chrono::milliseconds timeout(static_cast<int64_t>(verb.run.timeout_s * 1000));
  options.patience =
      std::max(SecondsIn("MOONSHARD_PATIENCE").value_or(options.patience), std::chrono::milliseconds(1000));
  options.mute = std::max(timeout, options.silence);
  if (const auto silence = SecondsIn("MOONSHARD_SILENCE")) options.silence = options.mute = *silence;
  options.join = std::min(options.join, timeout);
  options.on_wait = [](const LongWait& wait) {
    ClearTerminalLine();
    std::fprintf(stderr, "moonshard: %s\n", Visible(wait.ToText()).c_str());
  };
  options.on_failure = [&verb](const FailedRank& failure) { EndWith(failure, verb); };
  watch_ = RankWatch::FromEnvironment(shape.value(), std::move(options));
  // What is sent to a rank that has ended is an error of the call, and not the end of this process.
  if (watch_) std::signal(SIGPIPE, SIG_IGN);
}

void RunWatch::Enter(std::string stage, bool reported) const {
  if (watch_) watch_->Enter(std::move(stage), reported);
}

void RunWatch::Attach(const DeviceMesh& mesh) const {
  if (watch_) watch_->Attach(mesh);
}

void RunWatch::Done() const {
  if (watch_) watch_->Done();
}

void RunWatch::Fail(const std::string& message, int exit_code, bool consequence) const {
  if (!watch_ || failed_) return;
  failed_ = true;
  const std::optional<FailedRank> first = watch_->Fail(message, exit_code, consequence);
  if (first && consequence) EndWith(*first, verb_);
  EndAfterAll(message, exit_code);
}

void RunWatch::Report() const {
  try {
    throw;
  } catch (const PlanError& error) {
    const Diagnostics& found = error.diagnostics();
    Fail(LineOf(found), ExitCodeOf(found), std::ranges::count(found, Finding::kRankLost, &Diagnostic::finding) > 0);
  } catch (const InternalError& error) {
    Fail(std::string("defect: ") + error.what(), kExitDefect, /*consequence=*/false);
  } catch (const c10::DistError& error) {
    Fail(ErrorText(error), kExitFailed, /*consequence=*/true);
  } catch (const std::exception& error) {
    Fail(ErrorText(error), kExitFailed, /*consequence=*/false);
  }
}

int RunWatch::Guard(const std::function<int()>& body) const {
  try {
    return body();
  } catch (...) {
    Report();
    throw;
  }
}

}  // namespace moonshard

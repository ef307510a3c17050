// `moonshard shard` and `moonshard merge`.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "dsl/commands/cli/launch.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/planning/resolve_model/resolve_model.h"
#include "engine/core/base/json.h"
#include "engine/core/base/visible.h"
#include "engine/io/checkpoint/convert.h"
#include "engine/io/checkpoint/merge_adapter.h"
#include "engine/io/checkpoint/stored_adapter.h"
#include "engine/io/config/config.h"
#include "engine/io/exported_program/program_weights.h"

namespace moonshard {
namespace {

constexpr const char* kFormatVersion = "1.0";

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Progress on stderr: one line that is overwritten on a terminal, else a line from time to time.
class ProgressLine {
 public:
  explicit ProgressLine(const char* verb)
      : verb_(verb), terminal_(isatty(STDERR_FILENO) == 1), begin_(Now()), said_(begin_) {}

  void Show(uint64_t done, uint64_t total) {
    const double now = Now();
    if (now - said_ < (terminal_ ? 0.2 : 5.0)) return;
    said_ = now;
    Print(done, total, now);
    if (!terminal_) std::fputc('\n', stderr);
  }
  void End(const ConvertSummary& summary) {
    if (terminal_) std::fputs("\r\033[K", stderr);
    if (summary.was_there) {
      std::fprintf(stderr, "%s: the complete output already exists\n", verb_);
      return;
    }
    const double seconds = Now() - begin_;
    std::fprintf(stderr, "%s: %lld tensors, %lld rank files, %.3f GB written in %.1f s", verb_,
                 static_cast<long long>(summary.tensors), static_cast<long long>(summary.rank_files),
                 static_cast<double>(summary.written_bytes) / 1e9, seconds);
    if (summary.resumed_bytes > 0) {
      std::fprintf(stderr, "; %.3f GB were already written by an interrupted run",
                   static_cast<double>(summary.resumed_bytes) / 1e9);
    }
    std::fputc('\n', stderr);
  }
  void Clear() const {
    if (terminal_) std::fputs("\r\033[K", stderr);
  }

 private:
  void Print(uint64_t done, uint64_t total, double now) const {
    const double share = total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total);
    std::fprintf(stderr, "%s%s: %3.0f %%, %.2f of %.2f GB, %.0f MB/s", terminal_ ? "\r\033[K" : "", verb_, 100 * share,
                 static_cast<double>(done) / 1e9, static_cast<double>(total) / 1e9,
                 static_cast<double>(done) / 1e6 / (now - begin_));
  }

  const char* verb_;
  bool terminal_;
  double begin_;
  double said_;
};

template <class Work>
int Convert(const char* verb, const std::string& out, bool replace, bool json, const FindingsOutput& findings_output,
            const Work& work) {
  // A limit on file sizes is an error of the write like a full disk, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  ProgressLine line(verb);
  ConvertOptions options;
  options.replace = replace;
  options.progress = [&](uint64_t done, uint64_t total) { line.Show(done, total); };
  const Result<ConvertSummary> done = work(options);
  line.Clear();
  PrintFindings(done.diagnostics(), findings_output);
  if (!done.ok()) return ExitCodeOf(done.diagnostics());
  const ConvertSummary& summary = done.value();
  if (findings_output.text()) line.End(summary);
  if (json) {
    const JsonValue::Object document = {{"format_version", kFormatVersion},
                                        {"out", out},
                                        {"tensors", summary.tensors},
                                        {"rank_files", summary.rank_files},
                                        {"source_bytes", static_cast<int64_t>(summary.source_bytes)},
                                        {"written_bytes", static_cast<int64_t>(summary.written_bytes)},
                                        {"resumed_bytes", static_cast<int64_t>(summary.resumed_bytes)},
                                        {"was_there", summary.was_there}};
    std::cout << VisibleJson(WriteJson(document, 2)) << "\n";
  }
  return kExitSuccess;
}

}  // namespace

int RunShard(const ShardVerb& verb) {
  Diagnostics found;
  std::optional<ModelFolder> folder = OpenModelFolder(verb.model, /*headers_only=*/false).Collect(found);
  std::optional<CompiledPlan> plan;
  if (folder) {
    if (std::optional<Diagnostic> none = NoWeights(*folder)) {
      found.push_back(*std::move(none));
    } else if (folder->is_program) {
      std::optional<Checkpoint> weights = WeightsOf(*folder->program).Collect(found);
      if (weights) folder->checkpoint = std::move(*weights);
    }
    for (Diagnostic& d : CheckRanks(folder->mesh, kMostRankFiles, "write a file for each"))
      found.push_back(std::move(d));
    auto tree = std::make_shared<const ModuleTree>(TreeOf(*folder));
    plan = ToResult(ResolveModel(verb.model, folder->config, folder->mesh, std::move(tree))).Collect(found);
  }
  PrintFindings(found, verb.findings_output);
  if (!plan || HasErrors(found)) return kExitUsage;
  // The weights in an archive have the names and shapes of the model: nothing is made from them.
  const WeightRecipes recipes = folder->program && !folder->is_program ? RecipesOf(*folder->program) : WeightRecipes();
  ModelForm form;
  if (folder->is_program && folder->program->config)
    form.kept["config.json"] = WriteJson(folder->config.json(), 2) + "\n";
  if (verb.findings_output.text() && !plan->plan->chosen.empty())
    std::cerr << "plan " << Visible(plan->plan->name + ": " + plan->plan->chosen) << "\n";
  return Convert("shard", verb.out, verb.replace, verb.json, verb.findings_output, [&](const ConvertOptions& options) {
    return ShardModel(folder->checkpoint, *plan, verb.out, options, folder->program ? &recipes : nullptr,
                      folder->is_program ? &form : nullptr);
  });
}

int RunMerge(const MergeVerb& verb) {
  if (!verb.adapter.empty()) {
    Diagnostics found;
    const std::optional<Checkpoint> model = Checkpoint::Open(verb.sharded).Collect(found);
    Diagnostics unread;  // a model without a config is written as it is
    const std::optional<ModelConfig> config = ModelConfig::Read(verb.sharded).Collect(unread);
    const std::optional<StoredAdapter> adapter =
        ReadAdapter(verb.adapter, {}, Adapter().name, AdaptedModelOf(config.value_or(ModelConfig()))).Collect(found);
    PrintFindings(found, verb.findings_output);
    if (!model || !adapter) return kExitUsage;
    return Convert("merge", verb.out, verb.replace, verb.json, verb.findings_output,
                   [&](const ConvertOptions& options) { return MergeAdapter(*model, *adapter, verb.out, options); });
  }
  return Convert("merge", verb.out, verb.replace, verb.json, verb.findings_output,
                 [&](const ConvertOptions& options) { return MergeSharded(verb.sharded, verb.out, options); });
}

}  // namespace moonshard

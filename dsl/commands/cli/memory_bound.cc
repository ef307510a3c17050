#include "dsl/commands/cli/memory_bound.h"

#include <unistd.h>

#include <utility>

namespace moonshard {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string InGiB(double bytes) { return std::to_string(static_cast<int64_t>(bytes / kGiB)) + " GiB"; }

}  // namespace

// In doubles: the products may be above int64_t.
Diagnostics CheckMemory(const StepSize& size, const std::string& option) {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  if (pages <= 0) return {};
  const double has = static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double ids = 2.0 * sizeof(int64_t) * static_cast<double>(size.tokens);
  const double logits =
      static_cast<double>(size.logit_tokens) * static_cast<double>(size.vocabulary) * double{sizeof(float)};
  if (ids + logits <= has) return {};
  Diagnostic d = MakeDiagnostic(Finding::kBadInput, "a step of " + std::to_string(size.tokens) +
                                                        " tokens on one rank does not fit in the machine's memory");
  d.path = option;
  d.declared = "at least " + InGiB(ids + logits) + " for token ids, labels and logits";
  d.required = "at most " + InGiB(has) + ", the memory of the machine";
  return {std::move(d)};
}

}  // namespace moonshard

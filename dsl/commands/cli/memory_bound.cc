#include "dsl/commands/cli/memory_bound.h"

#include <unistd.h>

#include <utility>

namespace moonshard {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

std::string InGiB(double bytes) { return std::to_string(static_cast<int64_t>(bytes / kGiB)) + " GiB"; }

// `step`: "8 tokens"; `of`: what takes the bytes. In doubles: the products may be above int64_t.
Diagnostics CheckBytes(double bytes, const std::string& step, const std::string& of, const std::string& option) {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  if (pages <= 0) return {};
  const double has = static_cast<double>(pages) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= has) return {};
  Diagnostic d =
      MakeDiagnostic(Finding::kBadInput, "a step of " + step + " on one rank does not fit in the machine's memory");
  d.path = option;
  d.declared = "at least " + InGiB(bytes) + " for " + of;
  d.required = "at most " + InGiB(has) + ", the memory of the machine";
  return {std::move(d)};
}

}  // namespace

Diagnostics CheckMemory(const StepSize& size, const std::string& option) {
  const double ids = 2.0 * sizeof(int64_t) * static_cast<double>(size.tokens);
  const double logits =
      static_cast<double>(size.logit_tokens) * static_cast<double>(size.vocabulary) * double{sizeof(float)};
  return CheckBytes(ids + logits, std::to_string(size.tokens) + " tokens", "token ids, labels and logits", option);
}

Diagnostics CheckExampleMemory(int64_t rows, int64_t row_bytes, const std::string& option) {
  return CheckBytes(static_cast<double>(rows) * static_cast<double>(row_bytes), std::to_string(rows) + " examples",
                    "the examples", option);
}

}  // namespace moonshard

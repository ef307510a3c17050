#include "engine/io/checkpoint/through_staging.h"

#include <utility>

namespace moonshard {

Result<ConvertSummary> WriteThroughStaging(const std::string& place, const StagingOptions& options,
                                           const StagingWork& work, ConvertSummary& summary, Diagnostics& found) {
  Result<Staging> opened = Staging::Open(place, options);
  if (!opened.ok() && work.is_there()) {
    Staging::Forget(place, *options.storage);
    summary.was_there = true;
    return {summary, std::move(found)};
  }
  if (!opened.ok()) {
    found.push_back(opened.diagnostics().front());
    return found;
  }
  if (opened.value().published()) {
    summary.was_there = true;
    return {summary, std::move(found)};
  }
  if (Failure failed = work.write(opened.value())) {
    failed->help = "what is done is kept beside it, and the same command goes on from there";
    found.push_back(std::move(*failed));
  }
  if (HasErrors(found)) return found;
  return {summary, std::move(found)};
}

}  // namespace moonshard

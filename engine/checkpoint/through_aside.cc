#include "engine/checkpoint/through_aside.h"

#include <utility>

namespace moonshard {

Result<ConvertSummary> WriteThroughAside(const std::string& place, const AsideOptions& options, const AsideWork& work,
                                         ConvertSummary& summary, Diagnostics& found) {
  Result<Aside> opened = Aside::Open(place, options);
  if (!opened.ok() && work.is_there()) {
    Aside::Forget(place, *options.storage);
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

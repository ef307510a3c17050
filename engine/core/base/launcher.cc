#include "engine/core/base/launcher.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

namespace moonshard {
namespace {

constexpr uint32_t kLastStep = 0xfffffff0;  // SLURM_MAX_NORMAL_STEP_ID

}  // namespace

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

LauncherKind LauncherOf(const Environment& environment) {
  const auto set = [&](const char* name) { return !environment(name).value_or("").empty(); };
  if (set("RANK") || set("WORLD_SIZE")) return LauncherKind::kTorchrun;
  if (set("OMPI_COMM_WORLD_RANK")) return LauncherKind::kOpenMpi;
  if (set("PMI_RANK") && set("MPI_LOCALRANKID")) return LauncherKind::kHydra;
  if (set("SLURM_PROCID") && IsSlurmStep(environment)) return LauncherKind::kSlurm;
  return LauncherKind::kNone;
}

bool IsSlurmStep(const Environment& environment) {
  const std::string text = environment("SLURM_STEP_ID").value_or("");
  uint32_t step = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), step);
  return failed == std::errc() && end == text.data() + text.size() && step <= kLastStep;
}

}  // namespace moonshard

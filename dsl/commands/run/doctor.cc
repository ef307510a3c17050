#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <torch/version.h>

#include "dsl/commands/cli/findings_output.h"
#include "dsl/commands/cli/verbs.h"
#include "dsl/commands/run/launch_check.h"
#include "dsl/commands/run/verbs.h"
#include "engine/core/base/visible.h"
#include "engine/core/findings/forms.h"
#include "engine/runtime/mesh/device.h"
#include "engine/runtime/mesh/nccl/nccl_plugin.h"

namespace moonshard {
namespace {

constexpr const char* kDoctorFormatVersion = "1.0";

std::string Fixed(double value, int digits) {
  std::array<char, 64> text = {};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string Milliseconds(double seconds) { return Fixed(seconds * 1e3, 3) + " ms"; }
std::string Rate(double bytes_per_second) { return Fixed(bytes_per_second / 1e6, 1) + " MB/s"; }

std::string NcclVersion(const NcclPlugin& nccl) {
  const int version = nccl.nccl_version();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// A machine that has GPUs, or why it has none.
JsonValue CudaOf(const Result<ChosenDevice>& cuda) {
  if (!cuda.ok()) return JsonValue::Object{{"gpus", 0}, {"reason", cuda.diagnostics().front().message}};
  const NcclPlugin& nccl = *cuda.value().nccl;
  return JsonValue::Object{{"gpus", nccl.device_count()}, {"first", nccl.device_name(0)}, {"nccl", NcclVersion(nccl)}};
}

std::string StoreOf(const Launch& launch) {
  if (!launch.store_file.empty()) return "a file of this machine";
  return launch.host + ":" + std::to_string(launch.port) +
         (launch.agent_serves ? ", served by the launcher" : ", served by rank 0");
}

// Columns as wide as their widest text.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - row[i].size() + 2, ' ');
    }
    out += line + "\n";
  }
  return out;
}

JsonValue ToJson(const LaunchFacts& facts) {
  JsonValue::Object variables;
  for (const auto& [name, value] : facts.launch.variables) variables[name] = value;
  JsonValue::Array ranks;
  JsonValue::Array missing;
  for (size_t rank = 0; rank < facts.ranks.size(); ++rank) {
    if (facts.ranks[rank]) {
      ranks.push_back(facts.ranks[rank]->ToJson());
    } else if (facts.met) {
      missing.emplace_back(static_cast<int64_t>(rank));
    }
  }
  JsonValue::Object out = {{"launcher", facts.launch.launcher},
                           {"variables", std::move(variables)},
                           {"world_size", facts.launch.world_size},
                           {"store", facts.launch.world_size == 1 ? JsonValue() : JsonValue(StoreOf(facts.launch))},
                           {"ranks", std::move(ranks)},
                           {"missing", std::move(missing)},
                           {"connected", facts.connected}};
  JsonValue::Array pairs;
  for (const PairFigures& pair : facts.pairs) {
    pairs.push_back(JsonValue::Object{{"ranks", JsonValue::Array{pair.from, pair.to}},
                                      {"round_trip_seconds", pair.round_trip_s},
                                      {"bytes_per_second", pair.bytes_per_second}});
  }
  out["pairs"] = std::move(pairs);
  if (facts.sums) {
    out["all_reduce"] = JsonValue::Object{{"small_bytes", 4},
                                          {"small_seconds", facts.sums->small_s},
                                          {"large_bytes", kMessageBytes},
                                          {"large_seconds", facts.sums->large_s}};
  }
  return out;
}

void PrintLaunch(const LaunchFacts& facts) {
  const Launch& launch = facts.launch;
  std::string text = "launch    ";
  text += launch.launcher.empty() ? "no launcher" : launch.launcher;
  text += ", " + std::to_string(launch.world_size) + (launch.world_size == 1 ? " rank" : " ranks");
  for (const auto& [name, value] : launch.variables) text += "\n          " + name + "=" + value;
  if (launch.world_size == 1) {
    std::fputs(VisibleLines(text + "\n").c_str(), stdout);
    return;
  }
  text += "\nstore     " + StoreOf(launch) + "\n\n";
  std::vector<std::vector<std::string>> rows = {{"rank", "host", "address", "interface", "device", "backend"}};
  for (size_t rank = 0; rank < facts.ranks.size(); ++rank) {
    const std::optional<RankFacts>& of = facts.ranks[rank];
    const auto known = [](const std::string& value) { return value.empty() ? std::string("-") : value; };
    if (of) {
      rows.push_back({std::to_string(rank), known(of->host), known(of->address), known(of->interface),
                      known(of->device), known(of->backend)});
    } else {
      rows.push_back({std::to_string(rank), facts.met ? "has not come" : "not known", "-", "-", "-", "-"});
    }
  }
  text += Table(rows);
  if (!facts.pairs.empty()) {
    rows = {{"ranks", "round trip", "bandwidth"}};
    for (const PairFigures& pair : facts.pairs) {
      rows.push_back({std::to_string(pair.from) + " - " + std::to_string(pair.to), Milliseconds(pair.round_trip_s),
                      Rate(pair.bytes_per_second)});
    }
    text += "\n";
    text += Table(rows);
  }
  if (facts.sums) {
    text += "\nall-reduce of 4 bytes: " + Milliseconds(facts.sums->small_s) +
            "; of 16 MiB: " + Milliseconds(facts.sums->large_s) + ", " + Rate(kMessageBytes / facts.sums->large_s) +
            "\n";
  }
  std::fputs(VisibleLines(text).c_str(), stdout);
}

}  // namespace

int RunDoctor(const DoctorVerb& verb) {
  MeshOptions options;
  if (verb.run.device != "auto") options.device = verb.run.device == "cpu" ? DeviceChoice::kCpu : DeviceChoice::kCuda;
  if (verb.run.backend != "auto") options.backend = verb.run.backend == "gloo" ? Backend::kGloo : Backend::kNccl;
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(verb.run.timeout_s * 1000));
  options.rendezvous_timeout = options.timeout;
  const Result<ChosenDevice> cuda = ChooseDevice(DeviceChoice::kCuda, 0);
  const Result<Launch> launch = ReadLaunch(ProcessEnvironment);
  LaunchFacts facts;
  if (launch.ok()) {
    facts = CheckLaunch(launch.value(), options);
  } else {
    facts.findings = launch.diagnostics();
  }
  // Rank 0 reports. Of the others, the first of a machine does, where rank 0 may not know what is wrong.
  const bool first = !launch.ok() || facts.launch.rank == 0;
  const bool reports = first || (!facts.met && facts.launch.local_rank == 0);
  if (first && verb.json) {
    JsonValue::Object out = {{"format_version", kDoctorFormatVersion},
                             {"libtorch", TORCH_VERSION},
                             {"cuda", CudaOf(cuda)},
                             {"launch", ToJson(facts)}};
    out["findings"] = moonshard::ToJson(facts.findings);
    std::fputs(VisibleJson(WriteJson(out, 2) + "\n").c_str(), stdout);
  } else if (first) {
    std::printf("LibTorch  %s\n", TORCH_VERSION);
    if (cuda.ok()) {
      const NcclPlugin& nccl = *cuda.value().nccl;
      std::printf("CUDA      %d GPUs, the first is %s\n", nccl.device_count(), Visible(nccl.device_name(0)).c_str());
      std::printf("NCCL      %s\n", NcclVersion(nccl).c_str());
    } else {
      std::printf("CUDA      no: %s\n", Visible(cuda.diagnostics().front().message).c_str());
    }
    std::printf("CPU       Gloo\n");
    if (launch.ok()) PrintLaunch(facts);
    if (facts.findings.empty() && facts.launch.world_size > 1) std::printf("no problem was found\n");
  }
  std::fflush(stdout);
  if (reports && !(first && verb.json)) PrintFindings(facts.findings, {});
  return HasErrors(facts.findings) ? ExitCodeOf(facts.findings) : kExitSuccess;
}

}  // namespace moonshard

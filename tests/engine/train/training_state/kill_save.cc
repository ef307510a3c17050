// kill_save KILLS [MESH] [SEED]: a training run of real processes that saves after every step, of which some rank gets
// SIGKILL at a random moment, again and again. After every kill the step that `latest` names is complete, and none that
// a save had returned for is lost; the run that goes on from it is, to the bit, the one that nobody killed (dropout,
// AdamW, the processes' own generators). Exits with 1 where any of that is not so.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "engine/core/base/hash.h"
#include "engine/io/checkpoint/run_directory.h"
#include "engine/plan/plan/plan.h"
#include "engine/runtime/apply/parallelize.h"
#include "engine/runtime/nn/hook.h"
#include "engine/runtime/nn/linear.h"
#include "engine/train/training_state/training_checkpoints.h"
#include "tests/support/free_port.h"
#include "tests/support/process.h"
#include "tests/support/styles.h"

namespace moonshard::test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int64_t kWidth = 96;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    up = register_module("up", nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::dropout(down(torch::tanh(up(x))), 0.2, true); }
  nn::Linear up = nullptr;
  nn::Linear down = nullptr;
};
MOONSHARD_MODULE(Net);

Plan MakePlan() {
  Plan plan = test::PlanOfRules("net", {{"up", test::ColwiseStyle()}, {"down", test::RowwiseStyle()}});
  plan.data_parallel = DataParallel();
  plan.data_parallel->shards = true;
  return plan;
}

// What a rank says of a generation: one line each, whole whatever kills it.
class Trace {
 public:
  explicit Trace(const std::string& path)
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {}
  void Say(const std::string& line) const {
    const std::string text = line + "\n";
    if (::write(file_, text.data(), text.size()) < 0) std::perror("trace");
  }

 private:
  int file_;
};

std::string HashOfAll(const AppliedPlan& model, torch::optim::Optimizer& optimizer) {
  Hasher hasher;
  const auto add = [&](const at::Tensor& tensor) {
    const at::Tensor all = tensor.detach().contiguous();
    hasher.Add(all.const_data_ptr(), all.nbytes());
  };
  const Result<std::unique_ptr<OptimizerAdapter>> adapter = AdapterOf(optimizer);
  for (const LiveParameter& p : model.parameters()) {
    add(p.tensor);
    const std::optional<ParameterMemory> memory = adapter.value()->MemoryOf(p.tensor);
    if (!memory) continue;
    for (const auto& [name, tensor] : memory->tensors) add(tensor);
  }
  add(at::globalContext().defaultGenerator(c10::Device(c10::kCPU)).get_state());
  return HashToText(hasher.Value());
}

// A rank's whole life. Trains until `until`; with a run directory it resumes and saves.
void RunRank(const std::string& mesh_text, const std::string& run, const std::string& trace_path, int64_t until) {
  at::set_num_threads(1);
  MeshOptions mesh_options;
  mesh_options.device = DeviceChoice::kCpu;
  mesh_options.timeout = mesh_options.rendezvous_timeout = std::chrono::seconds(60);
  DeviceMesh mesh = DeviceMesh::FromEnvironment(MeshShape::Parse(mesh_text).ValueOrThrow(), mesh_options);
  const Trace trace(trace_path);
  torch::manual_seed(7);
  Net net;
  auto model = Parallelize(net, MakePlan(), mesh);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));
  const int64_t data_rank = mesh.coordinate(MeshAxis::kDpShard);
  torch::manual_seed(static_cast<uint64_t>(100 + data_rank));

  TrainingState state;
  state.model = &model.applied();
  state.optimizer = &optimizer;
  std::optional<TrainingCheckpoints> checkpoints;
  int64_t step = 0;
  if (!run.empty()) {
    TrainingCheckpointOptions options;
    options.keep = 2;
    options.timeout = std::chrono::seconds(60);
    checkpoints = TrainingCheckpoints::Open(run, mesh, options);
    if (checkpoints->Latest()) step = checkpoints->Load(state).step;
    trace.Say("resumed " + std::to_string(step));
    if (step > 0) trace.Say("step " + std::to_string(step) + " " + HashOfAll(model, optimizer));
  }
  while (step < until) {
    const at::Tensor x =
        torch::sin(torch::arange(4 * kWidth, torch::kFloat) * static_cast<double>(step + 1 + data_rank))
            .view({4, kWidth});
    optimizer.zero_grad();
    (model.forward(x) - x).square().mean().backward();
    optimizer.step();
    ++step;
    trace.Say("step " + std::to_string(step) + " " + HashOfAll(model, optimizer));
    if (!checkpoints) continue;
    if (step % 3 == 0) {
      checkpoints->Save(state, step);
      trace.Say("saved " + std::to_string(step));
    } else {
      checkpoints->SaveInBackground(state, step);  // the next one waits for it
    }
  }
  if (checkpoints) checkpoints->Wait();
  trace.Say("done " + std::to_string(step));
  mesh.Close();
}

class Supervisor {
 public:
  Supervisor(int64_t kills, std::string mesh, unsigned seed)
      : kills_(kills),
        mesh_(std::move(mesh)),
        random_(seed),
        world_(MeshShape::Parse(mesh_).ValueOrThrow().world_size()) {}

  int Run() {
    const std::string run = scratch_ / "run";
    int64_t within = 0;
    for (int64_t kill = 0; kill < kills_; ++kill) {
      const std::vector<pid_t> ranks = Start(run, INT64_MAX);
      // Mostly while it trains and saves; now and then while it starts and loads.
      const bool early = Between(0, 9) == 0;
      if (!early && !Ready(ranks)) return Fail("the ranks did not get ready");
      std::this_thread::sleep_for(std::chrono::microseconds(Between(0, early ? 600'000 : 120'000)));
      const auto first = static_cast<size_t>(Between(0, world_ - 1));
      ::kill(ranks[first], SIGKILL);
      // Some launchers are slow to notice.
      std::this_thread::sleep_for(milliseconds(Between(0, 3) == 0 ? Between(0, 300) : 0));
      for (pid_t rank : ranks) ::kill(rank, SIGKILL);
      for (pid_t rank : ranks) ::waitpid(rank, nullptr, 0);
      for (const auto& entry : fs::directory_iterator(scratch_ / "."))
        if (entry.path().filename().string().starts_with("store")) fs::remove(entry.path());
      std::error_code none;
      for (fs::directory_iterator at(run, none), end; !none && at != end; at.increment(none)) {
        within += at->path().extension() == ".partial";
      }
      if (!IsSound(run)) return 1;
      if ((kill + 1) % 20 == 0) {
        std::printf("%lld kills, step %lld, %lld within a save\n", static_cast<long long>(kill + 1),
                    static_cast<long long>(latest_), static_cast<long long>(within));
        std::fflush(stdout);
      }
    }
    // To the end, and the same again without a save or a kill.
    ++generation_;
    const int64_t end = Highest("step ") + 5;
    if (!Finish(Start(run, end))) return Fail("the last ranks did not finish");
    trace_ = "reference";
    if (!Finish(Start("", end))) return Fail("the reference did not finish");
    return Compare(end);
  }

 private:
  int64_t Between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

  static int Fail(const std::string& why) {
    std::printf("FAILED: %s\n", why.c_str());
    return 1;
  }

  std::string TracePath(const std::string& trace, int64_t rank) const {
    return scratch_ / (trace + "-" + std::to_string(rank));
  }

  // The ranks meet in a file and over TCP by turns.
  std::vector<pid_t> Start(const std::string& run, int64_t until) {
    ++generation_;
    const bool tcp = generation_ % 2 == 0;
    const std::string port = tcp ? test::FreePort() : "";
    const pid_t parent = getpid();
    std::vector<pid_t> ranks;
    for (int64_t rank = 0; rank < world_; ++rank) {
      const pid_t child = fork();
      if (child != 0) {
        ranks.push_back(child);
        continue;
      }
      test::EndWithParent(parent);
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(world_).c_str(), 1);
      if (tcp) {
        setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", port.c_str(), 1);
      } else {
        setenv("MOONSHARD_STORE", (scratch_ / ("store" + std::to_string(generation_))).c_str(), 1);
      }
      int code = 0;
      try {
        RunRank(mesh_, run, TracePath(trace_, rank), until);
      } catch (const std::exception& error) {
        std::ofstream(scratch_ / ("error-" + std::to_string(rank))) << error.what();
        code = 3;  // a peer was killed
      }
      std::_Exit(code);
    }
    return ranks;
  }

  std::vector<std::string> Lines(const std::string& trace, int64_t rank) const {
    std::vector<std::string> lines;
    std::ifstream in(TracePath(trace, rank));
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  // Whether every rank has said one "resumed" more.
  bool Ready(const std::vector<pid_t>& ranks) {
    const Clock::time_point until = Clock::now() + std::chrono::seconds(120);
    while (Clock::now() < until) {
      size_t ready = 0;
      for (int64_t rank = 0; rank < world_; ++rank) {
        size_t resumed = 0;
        for (const std::string& line : Lines(trace_, rank)) resumed += line.starts_with("resumed");
        ready += resumed > resumed_[rank];
      }
      if (ready == ranks.size()) return true;
      for (pid_t rank : ranks) {
        int status = 0;
        if (::waitpid(rank, &status, WNOHANG) == rank) return false;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }

  bool Finish(const std::vector<pid_t>& ranks) {
    bool good = true;
    for (pid_t rank : ranks) {
      int status = 0;
      ::waitpid(rank, &status, 0);
      good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    return good;
  }

  // The largest number behind a word in any rank's trace.
  int64_t Highest(const std::string& word) const {
    int64_t highest = 0;
    for (int64_t rank = 0; rank < world_; ++rank) {
      for (const std::string& line : Lines("trace", rank)) {
        if (line.starts_with(word)) highest = std::max<int64_t>(highest, std::atoll(line.c_str() + word.size()));
      }
    }
    return highest;
  }

  bool IsSound(const std::string& run) {
    for (int64_t rank = 0; rank < world_; ++rank) {
      resumed_[rank] = 0;
      for (const std::string& line : Lines(trace_, rank)) resumed_[rank] += line.starts_with("resumed");
    }
    const Result<std::optional<int64_t>> latest = RunDirectory(run).Latest();
    if (!latest.ok()) return Fail(ToText(latest.diagnostics())) == 0;
    latest_ = latest.value().value_or(0);
    if (latest_ < Highest("saved ")) {
      return Fail("step " + std::to_string(Highest("saved ")) + " was saved, and latest is " +
                  std::to_string(latest_)) == 0;
    }
    if (latest_ == 0) return true;
    const Diagnostics damage = CheckSharded(RunDirectory(run).PathOf(latest_));
    if (!damage.empty()) Fail(ToText(damage));
    return damage.empty();
  }

  // Every step that any generation took, against the run that nobody killed.
  int Compare(int64_t end) {
    int64_t compared = 0;
    int64_t resumed = 0;
    for (int64_t rank = 0; rank < world_; ++rank) {
      std::map<std::string, std::string> want;
      for (const std::string& line : Lines("reference", rank)) {
        std::istringstream in(line);
        std::string word;
        std::string step;
        std::string hash;
        if (in >> word >> step >> hash && word == "step") want[step] = hash;
      }
      for (const std::string& line : Lines("trace", rank)) {
        std::istringstream in(line);
        std::string word;
        std::string step;
        std::string hash;
        in >> word >> step >> hash;
        if (word == "resumed" && step != "0") ++resumed;
        if (word != "step") continue;
        ++compared;
        if (want[step] != hash) return Fail("rank " + std::to_string(rank) + " differs at step " + step);
      }
    }
    std::printf("PASSED: %lld kills on %s; %lld steps, of which %lld ranks resumed %lld times; %lld states compared\n",
                static_cast<long long>(kills_), mesh_.c_str(), static_cast<long long>(end),
                static_cast<long long>(world_), static_cast<long long>(resumed / world_),
                static_cast<long long>(compared));
    return compared > 0 ? 0 : 1;
  }

  int64_t kills_;
  std::string mesh_;
  std::mt19937 random_;
  int64_t world_;
  ScratchFolder scratch_;
  std::string trace_ = "trace";
  std::map<int64_t, size_t> resumed_;
  int64_t latest_ = 0;
  int64_t generation_ = 0;
};

}  // namespace
}  // namespace moonshard::test

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: kill_save KILLS [MESH] [SEED]\n");
    return 2;
  }
  // Its ranks are forks of it: what they see of the session is what any program of a test sees.
  const std::vector<std::string> environment = moonshard::test::ProcessEnvironment();
  clearenv();
  for (const std::string& variable : environment) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  const std::string mesh = argc > 2 ? argv[2] : "dp=2";
  const auto seed = static_cast<unsigned>(argc > 3 ? std::atoi(argv[3]) : 1);
  return moonshard::test::Supervisor(std::atoll(argv[1]), mesh, seed).Run();
}

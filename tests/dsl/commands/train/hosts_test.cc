// Ranks on two hosts: network namespaces that a cable joins, each with its own addresses, loopback and names. The ranks
// find each other without a variable that names an address or an interface. Needs root and iproute2.
#include <catch2/catch.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>

#include "tests/dsl/commands/train/runs.h"
#include "tests/support/free_port.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"

namespace moonshard::test {
namespace {

using Catch::Contains;

// Two hosts, "a" and "b", with the addresses 10.83.0.1 and .2, fd83::1 and ::2.
class Hosts {
 public:
  Hosts() {
    for (const char* place : {"/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"}) {
      if (ip_.empty() && std::filesystem::exists(place)) ip_ = place;
    }
    if (ip_.empty() || geteuid() != 0) return;
    made_ = Ip({"netns", "add", Name("a")}) && Ip({"netns", "add", Name("b")}) &&
            Ip({"-n", Name("a"), "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", Name("b")});
    for (const std::string host : {"a", "b"}) {
      const std::string number = host == "a" ? "1" : "2";
      made_ = made_ && Ip({"-n", Name(host), "link", "set", "lo", "up"}) &&
              Ip({"-n", Name(host), "link", "set", "cable", "up"}) &&
              Ip({"-n", Name(host), "addr", "add", "10.83.0." + number + "/24", "dev", "cable"}) &&
              Ip({"-n", Name(host), "addr", "add", "fd83::" + number + "/64", "dev", "cable", "nodad"});
    }
  }
  ~Hosts() {
    if (ip_.empty() || geteuid() != 0) return;
    for (const std::string host : {"a", "b"}) {
      Ip({"netns", "del", Name(host)});
      std::filesystem::remove_all(NamesFolder(host));
    }
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  bool made() const { return made_; }
  // What `host` knows a name as, beside its loopback.
  void SetName(const std::string& host, const std::string& name, const std::string& address) const {
    std::filesystem::create_directories(NamesFolder(host));
    std::ofstream(NamesFolder(host) / "hosts") << "127.0.0.1 localhost\n" << address << " " << name << "\n";
  }
  bool Ip(const Words& words) const { return RunExecutable(ip_, words).code == 0; }
  const std::string& ip() const { return ip_; }
  std::string Name(const std::string& host) const { return "moonshard-" + std::to_string(getpid()) + "-" + host; }

  // The rank of two that runs on `host`.
  std::unique_ptr<Process> Start(const std::string& host, int rank, const std::string& master, const std::string& port,
                                 const Words& words, const Words& variables = {}) const {
    Words all = {"netns", "exec", Name(host), RankExecutablePath()};
    all.insert(all.end(), words.begin(), words.end());
    Words set = {"RANK=" + std::to_string(rank), "LOCAL_RANK=0",          "WORLD_SIZE=2",
                 "LOCAL_WORLD_SIZE=1",           "MASTER_ADDR=" + master, "MASTER_PORT=" + port};
    set.insert(set.end(), variables.begin(), variables.end());
    const auto patience = [](const std::string& one) { return one.starts_with("MOONSHARD_PATIENCE="); };
    if (std::ranges::none_of(variables, patience)) set.emplace_back("MOONSHARD_PATIENCE=600");
    return std::make_unique<Process>(ip_, all, set);
  }

 private:
  std::filesystem::path NamesFolder(const std::string& host) const { return "/etc/netns/" + Name(host); }

  std::string ip_;
  bool made_ = false;
};

// Null, with a skip, where this machine cannot have them.
std::unique_ptr<Hosts> TwoHosts() {
  auto hosts = std::make_unique<Hosts>();
  if (hosts->made()) return hosts;
  Skip("two hosts need root, network namespaces and iproute2");
  return nullptr;
}

void ExpectDone(const std::unique_ptr<Process>& zero, const std::unique_ptr<Process>& one) {
  const Outcome first = zero->Wait(120);
  const Outcome second = one->Wait(120);
  INFO(first.ToText());
  INFO(second.ToText());
  CHECK(first.code == 0);
  CHECK(second.code == 0);
  CHECK(second.err.empty());
}

TEST_CASE("ranks on two hosts find each other by the address of the first") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  // A name that the first host itself resolves to its loopback, as Debian's /etc/hosts does with the machine's name.
  hosts->SetName("a", "first-host", "127.0.1.1");
  hosts->SetName("b", "first-host", "10.83.0.1");
  const auto [master, variable] = GENERATE(table<std::string, std::string>({
      {"10.83.0.1", ""},
      {"fd83::1", ""},
      {"first-host", ""},
      {"10.83.0.1", "GLOO_SOCKET_IFNAME=cable"},
  }));
  INFO(master << " " << variable);
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string out = folder / "out.safetensors";
  const Words words = {"eval",     kModel, "--mesh", "tp=2", "--input", kModel + "/inputs_1.safetensors",
                       "--output", out,    "--grads"};
  const Words variables = variable.empty() ? Words{} : Words{variable};
  const auto zero = hosts->Start("a", 0, master, port, words, variables);
  const auto one = hosts->Start("b", 1, master, port, words, variables);
  ExpectDone(zero, one);
  CHECK(RunExecutable(ExecutablePath(), {"compare", out, kModel + "/expected_1.safetensors"}).code == 0);
}

TEST_CASE("ranks on two hosts that have IPv6 alone find each other") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  for (const std::string host : {"a", "b"}) {
    REQUIRE(hosts->Ip({"-n", hosts->Name(host), "-4", "addr", "flush", "dev", "cable"}));
    REQUIRE(hosts->Ip({"-n", hosts->Name(host), "-4", "addr", "flush", "dev", "lo"}));
  }
  const ScratchFolder folder;
  const std::string port = FreePort();
  const std::string out = folder / "out.safetensors";
  const Words words = {"eval",     kModel, "--mesh", "tp=2", "--input", kModel + "/inputs_1.safetensors",
                       "--output", out,    "--grads"};
  const auto zero = hosts->Start("a", 0, "fd83::1", port, words);
  const auto one = hosts->Start("b", 1, "fd83::1", port, words);
  ExpectDone(zero, one);
  CHECK(RunExecutable(ExecutablePath(), {"compare", out, kModel + "/expected_1.safetensors"}).code == 0);
}

TEST_CASE("a model trains on two hosts as on one") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const ScratchFolder folder;
  const std::string port = FreePort();
  const auto words = [&](const std::string& log) {
    return TrainWords(folder, {"--mesh", "tp=2", "--steps", "6", "--log", folder / log});
  };
  const auto zero = hosts->Start("a", 0, "10.83.0.1", port, words("two.jsonl"));
  const auto one = hosts->Start("b", 1, "10.83.0.1", port, words("two.jsonl"));
  ExpectDone(zero, one);
  CHECK(RunTraining(words("one.jsonl")).code == 0);
  CHECK(Losses(folder / "two.jsonl") == Losses(folder / "one.jsonl"));
  CHECK(Losses(folder / "two.jsonl").size() == 6);
}

// Where the processes of a host listen, as the kernel writes it in /proc/net/tcp and tcp6: addresses in hexadecimal.
std::vector<std::string> ListeningAddresses(const Hosts& hosts, const std::string& host) {
  const std::string kListens = "0A";
  const Outcome done =
      RunExecutable(hosts.ip(), {"netns", "exec", hosts.Name(host), "cat", "/proc/net/tcp", "/proc/net/tcp6"});
  std::vector<std::string> out;
  std::istringstream lines(done.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number;
    std::string own;
    std::string peer;
    std::string state;
    words >> number >> own >> peer >> state;
    if (state == kListens) out.push_back(own.substr(0, own.find(':')));
  }
  return out;
}

// A run of two hosts that has taken steps and would take many more.
struct HostsRun {
  HostsRun(const Hosts& hosts, const ScratchFolder& folder, const Words& variables = {}) {
    const std::string port = FreePort();
    const std::string log = folder / "log.jsonl";
    const Words words = TrainWords(folder, {"--mesh", "tp=2", "--steps", "100000", "--log", log});
    zero = hosts.Start("a", 0, "10.83.0.1", port, words, variables);
    one = hosts.Start("b", 1, "10.83.0.1", port, words, variables);
    for (int tries = 0; tries < 600 && (!std::filesystem::exists(log) || LogLines(log).size() < 3); ++tries) {
      usleep(100'000);
    }
    REQUIRE(std::filesystem::exists(log));
    sleep(4);  // what a rank knows of another one is up to two seconds old
  }
  std::unique_ptr<Process> zero;
  std::unique_ptr<Process> one;
};

// The store, the groups of Gloo and the connections of the watch. A stranger in another network of a host finds nothing.
TEST_CASE("ranks listen at the address of the launch alone") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const ScratchFolder folder;
  const HostsRun run(*hosts, folder);
  const std::vector<std::string> first = ListeningAddresses(*hosts, "a");
  const std::vector<std::string> second = ListeningAddresses(*hosts, "b");
  CHECK(first.size() >= 3);
  CHECK(second.size() >= 1);
  for (const std::string& address : first) CHECK(address == "0100530A");   // 10.83.0.1
  for (const std::string& address : second) CHECK(address == "0200530A");  // 10.83.0.2
}

// How a rank ends that is not the cause: within `seconds` from now.
void ExpectEnds(const std::unique_ptr<Process>& rank, double seconds, int code, const Words& parts) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome done = rank->Wait(60);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  INFO(done.ToText());
  INFO("ended after " << took << " s");
  CHECK(took < seconds);
  CHECK(done.code == code);
  for (const std::string& part : parts) CHECK_THAT(done.err, Contains(part));
}

TEST_CASE("a rank that is killed in a step ends the other host, which names its host and stage") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const ScratchFolder folder;
  const HostsRun run(*hosts, folder);
  SECTION("a rank of another host") {
    kill(run.one->pid(), SIGKILL);
    ExpectEnds(run.zero, 10, 1,
               {"MS0503", "rank 1 on ", "(10.83.0.2), in 'step ", "failed first", "its process has ended without"});
  }
  SECTION("the rank that serves the store") {
    kill(run.zero->pid(), SIGKILL);
    ExpectEnds(run.one, 20, 1,
               {"MS0503", "rank 0 on ", "(10.83.0.1), in 'step ", "failed first", "the connection to its store"});
  }
}

TEST_CASE("a cable that is pulled for longer than MOONSHARD_SILENCE ends both hosts") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const ScratchFolder folder;
  const HostsRun run(*hosts, folder, {"MOONSHARD_SILENCE=8"});
  REQUIRE(hosts->Ip({"-n", hosts->Name("b"), "link", "set", "cable", "down"}));
  ExpectEnds(run.zero, 30, 1, {"rank 1 on ", "(10.83.0.2), in 'step ", "no sign of life for "});
  ExpectEnds(run.one, 30, 1, {"rank 0 on ", "(10.83.0.1), in 'step ", "its store has not responded for "});
}

// The limit of a silence without a connection is 12 s; the connections of the ranks stand.
TEST_CASE("a cable that is pulled for 15 seconds is survived, and the run goes on seconds after") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const ScratchFolder folder;
  const HostsRun run(*hosts, folder, {"MOONSHARD_PATIENCE=4"});
  const std::string log = folder / "log.jsonl";
  REQUIRE(hosts->Ip({"-n", hosts->Name("b"), "link", "set", "cable", "down"}));
  sleep(15);
  const size_t steps = LogLines(log).size();
  REQUIRE(hosts->Ip({"-n", hosts->Name("b"), "link", "set", "cable", "up"}));
  for (int tries = 0; tries < 300 && LogLines(log).size() < steps + 3; ++tries) usleep(100'000);
  CHECK(LogLines(log).size() >= steps + 3);
  kill(run.zero->pid(), SIGTERM);
  const Outcome zero = run.zero->Wait(60);
  const Outcome one = run.one->Wait(60);
  INFO(zero.ToText());
  INFO(one.ToText());
  CHECK(zero.code == 128 + SIGTERM);
  CHECK(one.code == 128 + SIGTERM);
  CHECK_THAT(zero.err, Contains("has waited") && Contains("rank 1 on ") && Contains("without a sign of life for ") &&
                           !Contains("failed first"));
}

TEST_CASE("doctor names what keeps two hosts apart") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const std::string port = FreePort();
  const Words words = {"doctor", "--timeout", "5"};
  SECTION("nothing: the figures of the connection") {
    const auto zero = hosts->Start("a", 0, "10.83.0.1", port, words);
    const auto one = hosts->Start("b", 1, "10.83.0.1", port, words);
    const Outcome first = zero->Wait(60);
    const Outcome second = one->Wait(60);
    INFO(first.ToText());
    INFO(second.ToText());
    CHECK(first.code == 0);
    CHECK(second.code == 0);
    CHECK_THAT(first.out, Contains("  10.83.0.1  cable  ") && Contains("  10.83.0.2  cable  ") &&
                              Contains("\n0 - 1  ") && Contains("no problem was found"));
  }
  SECTION("a rank that does not come") {
    const Outcome done = hosts->Start("a", 0, "10.83.0.1", port, words)->Wait(60);
    INFO(done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("rank 1 has not come within 5 s") && Contains("MASTER_ADDR=10.83.0.1"));
  }
  SECTION("rank 0, which does not come") {
    const Outcome done = hosts->Start("b", 1, "10.83.0.1", port, words)->Wait(60);
    INFO(done.ToText());
    CHECK(done.code == 1);
    CHECK_THAT(done.err, Contains("the store at 10.83.0.1:" + port + " was not reached") && Contains("start rank 0"));
  }
  SECTION("an address without a route") {
    const Outcome done = hosts->Start("b", 1, "10.99.0.1", port, words)->Wait(60);
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("no route to MASTER_ADDR") && Contains("it has 10.83.0.2, fd83::2"));
  }
  SECTION("the loopback") {
    const Outcome done = hosts->Start("a", 0, "127.0.0.1", port, words)->Wait(60);
    INFO(done.ToText());
    CHECK(done.code == 2);
    CHECK_THAT(done.err, Contains("MASTER_ADDR is the loopback") && Contains("MASTER_ADDR=10.83.0.1"));
  }
}

TEST_CASE("what a rank fails at alone is the error of the other host") {
  const auto hosts = TwoHosts();
  if (!hosts) return;
  const ScratchFolder folder;
  const std::string model = folder.CopyOf(kModel, "model");
  REQUIRE(std::filesystem::remove(model + "/model-00003-of-00006.safetensors"));
  const std::string port = FreePort();
  const Words more = {"--mesh", "tp=2", "--steps", "5"};
  const Words here = TrainWords(folder, more);
  const Words there = TrainWords(folder, more, model);
  const auto zero = hosts->Start("a", 0, "10.83.0.1", port, here);
  const auto one = hosts->Start("b", 1, "10.83.0.1", port, there);
  const Outcome cause = one->Wait(60);
  INFO(cause.ToText());
  CHECK(cause.code > 0);
  CHECK_THAT(cause.err, Contains(model));
  ExpectEnds(zero, 20, cause.code, {"rank 1 on ", "(10.83.0.2), in 'opening the model', failed first", model});
}

}  // namespace
}  // namespace moonshard::test

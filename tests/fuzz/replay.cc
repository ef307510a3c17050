// replay FOLDER...: every file of the directories through the target, in the order of their names, then inputs made of
// them, always the same ones: a brief fuzzing wherever the tests run, without libFuzzer and what it learns from
// coverage. Fails where there is no file. An input that breaks the target is left beside the program, as PROGRAM.input.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

namespace fs = std::filesystem;

constexpr int kMostInputs = 2000;
constexpr double kMostCpuSeconds = 4;
constexpr size_t kMostBytes = 4096;  // as in ./dev fuzz

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::string ReadFile(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream bytes;
  bytes << stream.rdbuf();
  return bytes.str();
}

void Feed(const std::string& text) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

// Inputs out of those that there are: bytes changed, put in, taken out, said twice; parts of another one put in.
class Mutator {
 public:
  explicit Mutator(const std::vector<std::string>& inputs) : inputs_(inputs) {}

  std::string Next() {
    std::string text = Any();
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(text);
    text.resize(std::min(text.size(), kMostBytes));
    return text;
  }

 private:
  // The generator's numbers are the standard's; its distributions are not.
  size_t Below(size_t count) { return count == 0 ? 0 : static_cast<size_t>(random_()) % count; }
  const std::string& Any() { return inputs_[Below(inputs_.size())]; }
  std::string PartOf(const std::string& text) {
    const size_t begin = Below(text.size() + 1);
    return text.substr(begin, Below(std::min<size_t>(text.size() - begin, 64) + 1));
  }

  void Change(std::string& text) {
    const size_t at = Below(text.size() + 1);
    switch (Below(6)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(Below(256));
        return;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        return;
      case 2: text.erase(at, Below(16)); return;
      case 3: text.insert(at, PartOf(text)); return;
      case 4: text.insert(at, PartOf(Any())); return;
      default: text.insert(at, 1, static_cast<char>(Below(256))); return;
    }
  }

  const std::vector<std::string>& inputs_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : fs::directory_iterator(argv[i])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  std::vector<std::string> inputs;
  for (const fs::path& file : files) {
    std::fprintf(stderr, "%s\n", file.filename().c_str());  // the last one is where it ended
    inputs.push_back(ReadFile(file));
    Feed(inputs.back());
  }
  if (files.empty()) return 1;
  const std::string kept = std::string(argv[0]) + ".input";
  std::fprintf(stderr, "inputs made of these; the one that breaks is %s\n", kept.c_str());
  Mutator mutator(inputs);
  int made = 0;
  // One that stays open: a file that is closed after it was cut is written to the disk at once.
  const int file = open(kept.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return 1;
  for (const double begin = CpuSeconds(); made < kMostInputs && CpuSeconds() - begin < kMostCpuSeconds; ++made) {
    const std::string text = mutator.Next();
    if (ftruncate(file, 0) != 0 || pwrite(file, text.data(), text.size(), 0) < 0) return 1;
    Feed(text);
  }
  close(file);
  fs::remove(kept);
  std::printf("replayed %zu files, and %d inputs made of them\n", files.size(), made);
  return 0;
}

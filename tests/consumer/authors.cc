// authors PLAN.lua CHECKPOINT: the program of the page for authors of models (engine/runtime/nn/README.md), run. As
// rank 0 it also proves the plan and counts what a step communicates and takes; ends with 0 where all is as the page
// says.
#include <cstdio>

#include "authors_page.h"  // made of the page by CMakeLists.txt

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const std::string proof = Prove(argv[1]);
    std::printf("proof: %s\n", proof.empty() ? "holds" : proof.c_str());
    const size_t collectives = CollectivesOfAStep(argv[1]);
    std::printf("collectives of a step: %d\n", static_cast<int>(collectives));
    const double loss = TrainAStep(argv[1], argv[2]);
    std::printf("loss: %f\n", loss);
    const std::string memory = MemoryOfAStep(argv[1]);
    std::printf("memory: %s\n", memory.c_str());
    const std::string difference = FirstDifference(argv[1]);
    std::printf("first difference: %s\n", difference.empty() ? "none" : difference.c_str());
    const bool right = proof.empty() && collectives > 0 && loss > 0 && difference.empty();
    return right && memory.find("attention.qkv") != std::string::npos ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "authors: %s\n", error.what());
    return 1;
  }
}

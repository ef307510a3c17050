// A shared library that links moonshard: evaluates a plan and runs a model under it on one rank.
#include <cstdio>
#include <exception>

#include <moonshard/moonshard.h>
#include <torch/torch.h>

#include "net.h"

static_assert(MOONSHARD_VERSION_MAJOR >= 0 && MOONSHARD_VERSION_MINOR >= 0 && MOONSHARD_VERSION_PATCH >= 0);

// Elements of the logits; -1 and a text on stderr where something failed.
extern "C" int RunPlan(const char* plan_file) {
  try {
    const auto mesh = moonshard::DeviceMesh::FromEnvironment({{"tp", 1}});
    auto model =
        moonshard::Parallelize(host::Net(37, 24, 50, 2), moonshard::LoadPlan(plan_file, {.mesh = mesh.shape()}), mesh);
    return static_cast<int>(model.forward(torch::arange(6).view({2, 3})).numel());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plugin: %s\n", error.what());
    return -1;
  }
}

// loads_plugin LIBRARY PLAN.lua: loads the shared library at run time and calls into it; ends with 0 where it answers
// right.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const auto run = reinterpret_cast<int (*)(const char*)>(dlsym(library, "RunPlan"));
  const int elements = run == nullptr ? -1 : run(argv[2]);
  std::printf("the plug-in gives %d logits\n", elements);
  return elements == 2 * 3 * 37 ? 0 : 1;
}

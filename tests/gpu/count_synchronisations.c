// Counts the calls with which a process makes the host wait for a GPU. To be loaded with LD_PRELOAD; on exit it writes
// the counts, and the return addresses of the calls that occurred most, to the file that COUNT_SYNCHRONISATIONS names,
// with the process id appended. LibTorch waits by these functions only: a blocking copy is cudaMemcpyAsync followed by
// cudaStreamSynchronize.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kDepth = 24, kPlaces = 512 };

struct Place {
  void* frames[kDepth];
  int depth;
  const char* function;
  long count;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct Place places[kPlaces];
static int used = 0;
static long total = 0;

static void Count(const char* function) {
  struct Place place;
  memset(&place, 0, sizeof(place));
  place.depth = backtrace(place.frames, kDepth);
  place.function = function;
  pthread_mutex_lock(&mutex);
  ++total;
  int i = 0;
  while (i < used && (places[i].depth != place.depth || places[i].function != function ||
                      memcmp(places[i].frames, place.frames, sizeof(place.frames)) != 0)) {
    ++i;
  }
  if (i == used && used < kPlaces) places[used++] = place;
  if (i < used) ++places[i].count;
  pthread_mutex_unlock(&mutex);
}

// The CUDA runtime may have been opened after the program started, so it is not behind this library in the search order.
static void* Real(const char* name) {
  void* runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
  if (runtime == NULL) runtime = dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD);
  return runtime == NULL ? NULL : dlsym(runtime, name);
}

#define FORWARD(name, parameters, arguments)                 \
  __attribute__((visibility("default"))) int name parameters { \
    static int(*real) parameters;                            \
    if (real == NULL) *(void**)(&real) = Real(#name);         \
    Count(#name);                                            \
    return real arguments;                                   \
  }

FORWARD(cudaStreamSynchronize, (void* stream), (stream))
FORWARD(cudaEventSynchronize, (void* event), (event))
FORWARD(cudaDeviceSynchronize, (void), ())
FORWARD(cudaMemcpy, (void* to, const void* from, size_t bytes, int kind), (to, from, bytes, kind))

__attribute__((destructor)) static void Write(void) {
  const char* name = getenv("COUNT_SYNCHRONISATIONS");
  if (name == NULL || total == 0) return;
  char path[4096];
  snprintf(path, sizeof(path), "%s.%ld", name, (long)getpid());
  FILE* out = fopen(path, "w");
  if (out == NULL) return;
  fprintf(out, "total %ld\n", total);
  for (int i = 0; i < used; ++i) {
    fprintf(out, "\n%ld %s\n", places[i].count, places[i].function);
    for (int d = 1; d < places[i].depth; ++d) {
      Dl_info info;
      if (dladdr(places[i].frames[d], &info) != 0 && info.dli_fname != NULL) {
        fprintf(out, "  %s+0x%lx %s\n", info.dli_fname, (long)((char*)places[i].frames[d] - (char*)info.dli_fbase),
                info.dli_sname == NULL ? "" : info.dli_sname);
      }
    }
  }
  fclose(out);
}

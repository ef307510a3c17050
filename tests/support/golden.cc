#include "tests/support/golden.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace moonshard {
namespace {

// Fills the file that will replace the golden at `path`, with its permissions; false with errno where anything fails.
bool WriteBeside(int file, const std::string& path, const std::string& text) {
  struct stat before = {};
  if (fchmod(file, stat(path.c_str(), &before) == 0 ? before.st_mode & 07777 : 0644) != 0) return false;
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = write(file, text.data() + done, text.size() - done);
    if (put < 0) return false;
    done += static_cast<size_t>(put);
  }
  return fsync(file) == 0;  // some file systems say only here that they are full
}

}  // namespace

bool Approving() {
  const char* approve = std::getenv("APPROVE");
  return approve != nullptr && std::string(approve) == "1";
}

void WriteGolden(const std::string& path, const std::string& text) {
  std::string beside = path + ".XXXXXX";
  const int file = mkstemp(beside.data());
  const bool done = file >= 0 && WriteBeside(file, path, text) && std::rename(beside.c_str(), path.c_str()) == 0;
  const int error = errno;
  if (file >= 0) close(file);
  if (done) return;
  if (file >= 0) unlink(beside.c_str());
  throw std::runtime_error("cannot write the golden '" + path + "', which stays as it was: " + std::strerror(error));
}

}  // namespace moonshard

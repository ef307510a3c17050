#include "engine/core/base/write_text.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace moonshard {

std::optional<Diagnostic> WriteText(const std::string& path, std::string_view text) {
  int why = 0;
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) {
    why = errno;
  } else {
    if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) why = errno;
    if (std::fclose(file) != 0 && why == 0) why = errno;
  }
  if (why == 0) return std::nullopt;
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + std::strerror(why));
  d.required = "a file in a directory that exists and can be written to";
  return d;
}

}  // namespace moonshard

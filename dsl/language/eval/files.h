// Files: the source texts of plans and modules, which are built in (stdlib/, plans/) or in a directory of the user.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/base/result.h"

namespace moonshard {

struct EmbeddedFile {
  std::string_view path;  // "plans/llama.lua"
  std::string_view text;
};

// All built-in files, sorted by path.
std::span<const EmbeddedFile> EmbeddedFiles();

struct SourceFile {
  std::string name;    // for diagnostics: "plans/llama.lua" if built in, else the path as given by the user
  std::string folder;  // the directory in which the file's require and extends search; empty for a built-in file
  std::string text;
  bool internal = false;  // a file of stdlib: diagnostics show the line of the caller instead
};

// Returns the built-in file with this path ("plans/llama.lua"); nothing if there is no such file.
std::optional<SourceFile> FindEmbedded(const std::string& path);
// Returns the names of the built-in plans, sorted: "llama", "mistral".
std::vector<std::string> EmbeddedPlanNames();

// Reads a regular file of at most `most_bytes` bytes. Errors: kFileNotFound; kFileUnreadable, also for a larger file
// and for a pipe, a device or a directory.
Result<SourceFile> ReadSource(const std::string& path, size_t most_bytes);

// Returns the path `folder`/`relative` if it is a regular file that is inside `folder` after links are resolved.
// Returns nothing otherwise, and if `relative` is absolute or contains "..".
std::optional<std::string> FindInside(const std::string& folder, const std::string& relative);

}  // namespace moonshard

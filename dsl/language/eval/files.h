// Files: the sources of plans and modules: built in (stdlib/, plans/), or in a directory of the user.
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

// Sorted by path.
std::span<const EmbeddedFile> EmbeddedFiles();

struct SourceFile {
  std::string name;    // as diagnostics call it: "plans/llama.lua" built in, else the path as the user gave it
  std::string folder;  // the directory of its own files; empty for a built-in one
  std::string text;
  bool internal = false;
};

std::optional<SourceFile> FindEmbedded(const std::string& path);
// Names of the built-in plans, sorted: "llama", "mistral".
std::vector<std::string> EmbeddedPlanNames();

// The text of a regular file of at most `most_bytes`. Errors: kFileNotFound, kFileUnreadable.
Result<SourceFile> ReadSource(const std::string& path, size_t most_bytes);

// The path of the file `relative` in `directory`, if it exists and is inside after resolving links; nothing otherwise,
// and for an absolute path or one with "..".
std::optional<std::string> FindInside(const std::string& folder, const std::string& relative);

}  // namespace moonshard

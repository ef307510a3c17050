#include "engine/core/base/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace moonshard {
namespace {

// Builds a JsonValue from tokens, each value at its final place: `open_` points at the containers around the next one,
// outermost first. The pointers stay good, because a container grows only while it is the innermost.
class Builder {
 public:
  std::string Take(JsonToken& token) {
    switch (token.event) {
      case JsonEvent::kNull: Put({}); break;
      case JsonEvent::kBool: Put(token.boolean); break;
      case JsonEvent::kUnsigned:
        if (token.integer > static_cast<uint64_t>(INT64_MAX)) {
          Put(static_cast<double>(token.integer));
        } else {
          Put(static_cast<int64_t>(token.integer));
        }
        break;
      case JsonEvent::kNegative: Put(token.negative); break;
      case JsonEvent::kDouble: Put(token.number); break;
      case JsonEvent::kString: Put(std::move(token.text)); break;
      case JsonEvent::kKey: {
        const auto [entry, is_new] = open_.back()->AsObject().try_emplace(std::move(token.text));
        if (!is_new) return "key '" + entry->first + "' is duplicated in one object";
        slot_ = &entry->second;
        break;
      }
      case JsonEvent::kBeginObject: open_.push_back(Put(JsonValue::Object())); break;
      case JsonEvent::kBeginArray: open_.push_back(Put(JsonValue::Array())); break;
      case JsonEvent::kEndObject:
      case JsonEvent::kEndArray: open_.pop_back(); break;
    }
    return "";
  }
  JsonValue TakeRoot() { return std::move(root_); }

 private:
  JsonValue* Put(JsonValue value) {
    if (open_.empty()) {
      slot_ = &root_;
    } else if (open_.back()->is_array()) {
      slot_ = &open_.back()->AsArray().emplace_back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  std::vector<JsonValue*> open_;
  JsonValue* slot_ = nullptr;  // of an object: where the value of the last key goes
  JsonValue root_;
};

// Larger than any file of a model or a tokenizer: what goes on beyond is none of them.
constexpr size_t kMostFileBytes = size_t{1} << 30;

// The bytes of a regular file; else why not. Does not wait for the writer of a pipe, nor read a device.
std::string ReadBytes(const std::string& path, std::string& text, bool& missing) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    missing = errno == ENOENT || errno == ENOTDIR;
    return std::strerror(errno);
  }
  std::string why;
  struct stat status = {};
  if (::fstat(file, &status) != 0) {
    why = std::strerror(errno);
  } else if (S_ISDIR(status.st_mode)) {
    why = std::strerror(EISDIR);
  } else if (!S_ISREG(status.st_mode)) {
    why = "it is no regular file";
  }
  char buffer[1 << 16];
  while (why.empty()) {
    const ssize_t count = ::read(file, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) why = std::strerror(errno);
    if (count <= 0) break;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kMostFileBytes) why = "it has more than " + std::to_string(kMostFileBytes >> 20) + " MiB";
  }
  ::close(file);
  return why;
}

}  // namespace

Result<JsonValue> ParseJson(std::string_view text, const std::string& file_name, JsonDialect dialect) {
  Builder builder;
  const std::optional<JsonFault> fault = ReadJson(
      text, [&](JsonToken& token) { return builder.Take(token); }, dialect);
  if (!fault) return builder.TakeRoot();
  return MakeDiagnostic(Finding::kBadJson, fault->message, SpanOfByte(text, file_name, fault->byte));
}

Result<JsonValue> ReadJsonFile(const std::string& path, JsonDialect dialect) {
  std::string text;
  bool missing = false;
  const std::string why = ReadBytes(path, text, missing);
  if (why.empty()) return ParseJson(text, path, dialect);
  Diagnostic d =
      MakeDiagnostic(missing ? Finding::kFileNotFound : Finding::kFileUnreadable, "cannot read '" + path + "': " + why);
  d.path = path;
  return d;
}

}  // namespace moonshard

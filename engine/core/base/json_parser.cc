#include "engine/core/base/json.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/core/base/json_reader.h"

namespace moonshard {
namespace {

// Builds a JsonValue from tokens: the open containers, outermost first.
class Builder {
 public:
  std::string Take(JsonToken& token) {
    switch (token.event) {
      case JsonEvent::kNull: return Put({});
      case JsonEvent::kBool: return Put(token.boolean);
      case JsonEvent::kUnsigned:
        if (token.integer > static_cast<uint64_t>(INT64_MAX)) return Put(static_cast<double>(token.integer));
        return Put(static_cast<int64_t>(token.integer));
      case JsonEvent::kNegative: return Put(token.negative);
      case JsonEvent::kDouble: return Put(token.number);
      case JsonEvent::kString: return Put(std::move(token.text));
      case JsonEvent::kKey:
        if (open_.back().value.Find(token.text)) return "key '" + token.text + "' stands twice in one object";
        open_.back().key = std::move(token.text);
        return "";
      case JsonEvent::kBeginObject: open_.push_back({JsonValue(JsonValue::Object()), ""}); return "";
      case JsonEvent::kBeginArray: open_.push_back({JsonValue(JsonValue::Array()), ""}); return "";
      case JsonEvent::kEndObject:
      case JsonEvent::kEndArray: {
        JsonValue closed = std::move(open_.back().value);
        open_.pop_back();
        return Put(std::move(closed));
      }
    }
    return "";
  }
  JsonValue TakeRoot() { return std::move(root_); }

 private:
  struct Open {
    JsonValue value;
    std::string key;  // of an object: the one whose value comes next
  };

  std::string Put(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& inner = open_.back(); inner.value.is_array()) {
      inner.value.AsArray().push_back(std::move(value));
    } else {
      inner.value.AsObject().emplace(std::move(inner.key), std::move(value));
    }
    return "";
  }

  std::vector<Open> open_;
  JsonValue root_;
};

}  // namespace

Result<JsonValue> ParseJson(std::string_view text, const std::string& file_name) {
  Builder builder;
  const std::optional<JsonFault> fault = ReadJson(text, [&](JsonToken& token) { return builder.Take(token); });
  if (!fault) return builder.TakeRoot();
  return MakeDiagnostic(Finding::kBadJson, fault->message, SpanOfByte(text, file_name, fault->byte));
}

Result<JsonValue> ReadJsonFile(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  int error = file ? 0 : errno;
  std::string text;
  if (file) {
    char buffer[1 << 16];
    errno = 0;
    while (const size_t count = std::fread(buffer, 1, sizeof(buffer), file.get())) text.append(buffer, count);
    if (std::ferror(file.get())) error = errno ? errno : EIO;
  }
  if (error == 0) return ParseJson(text, path);
  const bool missing = error == ENOENT || error == ENOTDIR;
  Diagnostic d = MakeDiagnostic(missing ? Finding::kFileNotFound : Finding::kFileUnreadable,
                                "cannot read '" + path + "': " + std::strerror(error));
  d.path = path;
  return d;
}

}  // namespace moonshard

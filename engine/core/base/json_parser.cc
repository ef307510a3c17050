#include "engine/core/base/json.h"

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

}  // namespace

Result<JsonValue> ParseJson(std::string_view text, const std::string& file_name, JsonDialect dialect) {
  Builder builder;
  const std::optional<JsonFault> fault = ReadJson(
      text, [&](JsonToken& token) { return builder.Take(token); }, dialect);
  if (!fault) return builder.TakeRoot();
  return MakeDiagnostic(Finding::kBadJson, fault->message, SpanOfByte(text, file_name, fault->byte));
}

}  // namespace moonshard

// The header is read as a stream of tokens and not as a tree of values: it may have 100 MB, of which a tree would make
// several times as much, and a damaged or hostile one must be refused within the memory of what it validly holds. The
// state is that of one field of one tensor. Both forms that the Rust reader accepts are taken: a tensor as an object or
// as an array of its three fields, a dtype as a name or as {name: null}.
#include "engine/io/safetensors/header_json.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/core/base/json.h"
#include "engine/core/base/json_reader.h"
#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr const char* kMetadataKey = "__metadata__";
// A damaged header can hold a million faults of one kind.
constexpr size_t kMostJsonComplaints = 20;

std::vector<std::string> DTypeNames() {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) names.emplace_back(SafetensorsName(static_cast<DType>(i)));
  return names;
}

// Takes the tokens of a header. Depth 1 is the header itself, depth 2 a tensor or the metadata, depth 3 a field's array
// (or the object form of a dtype).
class HeaderSink {
 public:
  HeaderSink(const std::string& file_name, HeaderJson& out, Diagnostics& found)
      : file_name_(file_name), out_(out), found_(found) {}

  std::string Take(JsonToken& token) {
    if (token.depth == 0 || (first_ && token.event != JsonEvent::kBeginObject))
      return "the header is not a JSON object";
    if (first_) {
      first_ = false;
    } else if (token.depth == 1) {
      TakeEntry(token);
    } else if (in_metadata_) {
      TakeMetadata(token);
    } else {
      TakeTensor(token);
    }
    return complaints_ < kMostJsonComplaints ? "" : "too many errors to continue";
  }

 private:
  enum Field { kDType, kShape, kOffsets, kFieldCount, kOther = kFieldCount };
  static constexpr const char* kFieldNames[] = {"dtype", "shape", "data_offsets"};

  static bool Begins(const JsonToken& token) {
    return token.event == JsonEvent::kBeginObject || token.event == JsonEvent::kBeginArray;
  }
  static bool Ends(const JsonToken& token) {
    return token.event == JsonEvent::kEndObject || token.event == JsonEvent::kEndArray;
  }

  void Complain(std::string message, std::string declared = "", std::string required = "", std::string help = "") {
    Diagnostic d = BadSafetensors(file_name_, tensor_.name, std::move(message));
    d.declared = std::move(declared);
    d.required = std::move(required);
    d.help = std::move(help);
    found_.push_back(std::move(d));
    ++complaints_;
  }
  void ComplainField(const std::string& what, const std::string& required) {
    if (!std::exchange(field_wrong_, true)) {
      Complain("tensor " + QuotedName(tensor_.name) + ": " + kFieldNames[field_] + " " + what, "", required);
    }
  }

  // A key of the header, or a value of one that is neither object nor array.
  void TakeEntry(JsonToken& token) {
    if (token.event == JsonEvent::kKey) {
      tensor_ = {};
      tensor_.name = std::move(token.text);
      in_metadata_ = tensor_.name == kMetadataKey;
      if (in_metadata_ && std::exchange(metadata_seen_, true)) Complain("'__metadata__' is duplicated in the header");
    } else if (!Ends(token)) {
      if (in_metadata_ && token.event != JsonEvent::kNull) ComplainMetadata();
      if (!in_metadata_) ComplainTensor();
    }
  }
  void ComplainMetadata() { Complain("'__metadata__' is not an object of strings", "", "{\"key\": \"text\", ...}"); }
  void ComplainTensor() {
    Complain("tensor " + QuotedName(tensor_.name) + " is not described by an object", "",
             "{\"dtype\": ..., \"shape\": [...], \"data_offsets\": [begin, end]}");
  }

  void TakeMetadata(JsonToken& token) {
    if (token.depth == 2 && token.event == JsonEvent::kBeginObject) return;
    if (token.depth == 2 && token.event == JsonEvent::kEndObject) return;
    if (token.depth == 2 && token.event == JsonEvent::kKey) {
      metadata_key_ = std::move(token.text);
    } else if (token.depth == 2 && token.event == JsonEvent::kString) {
      out_.metadata[metadata_key_] = std::move(token.text);
    } else if (token.depth == 2 || Begins(token)) {
      ComplainMetadata();
    }
  }

  void TakeTensor(JsonToken& token) {
    if (token.depth == 2 && Begins(token)) {
      sequence_ = token.event == JsonEvent::kBeginArray;
      std::fill(seen_, seen_ + kFieldCount, false);
      next_ = 0;
      field_ = kOther;
    } else if (token.depth == 2 && Ends(token)) {
      FinishTensor();
    } else if (token.depth == 2 && token.event == JsonEvent::kKey) {
      const auto* name = std::find(kFieldNames, kFieldNames + kFieldCount, token.text);
      StartField(static_cast<Field>(name - kFieldNames));
    } else {
      const bool starts = token.depth == 2 || (token.depth == 3 && Begins(token));
      if (sequence_ && starts) StartField(static_cast<Field>(std::min<int>(next_++, kOther)));
      if (field_ != kOther) TakeField(token);
    }
  }

  // A field that is wrong is reported once, however many tokens of it are wrong; the next field starts anew.
  void StartField(Field field) {
    field_ = field;
    field_wrong_ = false;
    count_ = 0;
    if (field == kOther) {
      if (sequence_) Complain("tensor " + QuotedName(tensor_.name) + " is an array of more than three fields");
    } else if (std::exchange(seen_[field], true)) {
      ComplainField("is duplicated", "each field once");
    }
  }

  void TakeField(JsonToken& token) {
    switch (field_) {
      case kDType: return TakeDType(token);
      case kShape: return TakeNumber(token, "a list of integers from 0 to 2^64 - 1");
      case kOffsets: return TakeNumber(token, "[begin, end], integers from 0 to 2^64 - 1");
      case kOther: return;
    }
  }

  // "F32", or {"F32": null}.
  void TakeDType(JsonToken& token) {
    const std::string required = "the name of a dtype";
    if (token.depth == 2 && token.event == JsonEvent::kString) return SetDType(token.text);
    if (token.depth == 3 && token.event == JsonEvent::kBeginObject) return;
    if (token.depth == 3 && token.event == JsonEvent::kKey && ++count_ == 1) return SetDType(token.text);
    if (token.depth == 3 && token.event == JsonEvent::kNull && count_ == 1) return;
    if (token.depth == 3 && token.event == JsonEvent::kEndObject && count_ == 1) return;
    ComplainField("is not a string", required);
  }
  void SetDType(const std::string& name) {
    if (const std::optional<DType> dtype = DTypeFromSafetensors(name)) {
      tensor_.dtype = *dtype;
    } else {
      field_wrong_ = true;
      Complain("tensor " + QuotedName(tensor_.name) + " has the unknown dtype " + QuotedName(name), name, "",
               DidYouMean(name, DTypeNames(), 32));
    }
  }

  void TakeNumber(JsonToken& token, const char* required) {
    if (token.depth == 3 && token.event == JsonEvent::kBeginArray) {
      if (field_ == kShape) tensor_.shape.clear();
    } else if (token.depth == 3 && token.event == JsonEvent::kUnsigned) {
      if (field_ == kShape) {
        tensor_.shape.push_back(token.integer);
      } else if (count_ < 2) {
        (count_ == 0 ? tensor_.begin : tensor_.end) = token.integer;
      }
      ++count_;
    } else if (token.depth == 3 && token.event == JsonEvent::kEndArray) {
      if (field_ == kOffsets && count_ != 2) ComplainField("has " + std::to_string(count_) + " numbers", required);
    } else {
      ComplainField("is not valid", required);
    }
  }

  void FinishTensor() {
    for (int field = 0; field < kFieldCount; ++field) {
      if (!seen_[field]) Complain("tensor " + QuotedName(tensor_.name) + " has no " + kFieldNames[field]);
    }
    const auto [known, is_new] = by_name_.emplace(tensor_.name, out_.tensors.size());
    if (is_new) {
      out_.tensors.push_back(std::move(tensor_));
      return;
    }
    Diagnostic d =
        BadSafetensors(file_name_, tensor_.name,
                       "tensor " + QuotedName(tensor_.name) + " is duplicated in the header; the last entry counts");
    d.severity = Severity::kWarning;
    found_.push_back(std::move(d));
    out_.tensors[known->second] = std::move(tensor_);
  }

  const std::string& file_name_;
  HeaderJson& out_;
  Diagnostics& found_;
  std::unordered_map<std::string, size_t> by_name_;  // looked up, never walked
  size_t complaints_ = 0;
  bool first_ = true;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string metadata_key_;
  RawTensor tensor_;
  bool sequence_ = false;
  bool seen_[kFieldCount] = {};
  int next_ = 0;  // of a sequence: the field that comes next
  Field field_ = kOther;
  bool field_wrong_ = false;
  uint64_t count_ = 0;  // numbers (or keys of a dtype object) of the field so far
};

}  // namespace

Diagnostic BadSafetensors(const std::string& file_name, const std::string& tensor, std::string message) {
  Diagnostic d = MakeDiagnostic(Finding::kBadSafetensors, std::move(message));
  d.where.file = file_name;
  d.path = tensor.empty() ? "" : QuotedName(tensor).substr(1, QuotedName(tensor).size() - 2);
  return d;
}

std::string QuotedName(std::string_view name) {
  std::string quoted = JsonQuoted(name);
  quoted.front() = quoted.back() = '\'';
  return quoted;
}

HeaderJson ParseHeaderJson(std::string_view text, const std::string& file_name, Diagnostics& found) {
  HeaderJson out;
  HeaderSink sink(file_name, out, found);
  const std::optional<JsonFault> fault = ReadJson(text, [&](JsonToken& token) { return sink.Take(token); });
  if (fault) {
    found.push_back(BadSafetensors(file_name, "",
                                   "the header cannot be read: " + fault->message + " (byte " +
                                       std::to_string(fault->byte) + " of " + std::to_string(text.size()) + ")"));
  }
  return out;
}

}  // namespace moonshard

// The header is complete before the first byte of a tensor: it has the offsets of all of them, which follow from their
// declared sizes. So tensors are written as a stream, in the order of the header, and Finish() compares what was
// appended with what was declared. The order and the padding are those of the Rust writer, so the same tensors give the
// same file to the byte.
#include "engine/io/safetensors/writer.h"

#include <algorithm>
#include <utility>

#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/header.h"
#include "engine/io/safetensors/header_json.h"

namespace moonshard {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

Diagnostic WriteFailed(const std::string& path, const std::string& why) {
  Diagnostic d = MakeDiagnostic(Finding::kWriteFailed, "cannot write '" + path + "': " + why);
  d.path = path;
  return d;
}

// Bytes of a tensor; nothing where the spec cannot be written.
std::optional<uint64_t> BytesOfSpec(const TensorSpec& spec) {
  uint64_t bits = static_cast<uint64_t>(BitsOf(spec.dtype));
  for (int64_t size : spec.shape) {
    if (size < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

// Length, JSON and padding; `bytes` gets the size of all tensors. What is wrong with the declaration otherwise.
std::optional<std::string> HeaderText(const std::vector<TensorSpec>& order,
                                      const std::map<std::string, std::string>& metadata, uint64_t& bytes,
                                      std::string& out) {
  out = "{";
  if (!metadata.empty()) {
    JsonValue::Object object;
    for (const auto& [key, value] : metadata) object.emplace(key, value);
    out += "\"__metadata__\":" + WriteJson(object, 0);
  }
  bytes = 0;
  std::vector<std::string> names;
  for (const TensorSpec& spec : order) {
    const std::optional<uint64_t> size = BytesOfSpec(spec);
    if (!size) {
      return "tensor " + QuotedName(spec.name) + " cannot have the shape " + ShapeToString(spec.shape) +
             " and the dtype " + ToString(spec.dtype);
    }
    const Result<JsonValue> read_back = ParseJson(JsonQuoted(spec.name), "");
    if (!read_back.ok() || read_back.value() != JsonValue(spec.name)) {
      return "the name " + QuotedName(spec.name) + " is not UTF-8";
    }
    if (spec.name == "__metadata__") return "a tensor cannot have the name '__metadata__'";
    names.push_back(spec.name);
    out += (out.size() > 1 ? "," : "") + JsonQuoted(spec.name) + ":{\"dtype\":\"" + SafetensorsName(spec.dtype) +
           "\",\"shape\":[";
    for (size_t d = 0; d < spec.shape.size(); ++d) out += (d ? "," : "") + std::to_string(spec.shape[d]);
    out += "],\"data_offsets\":[" + std::to_string(bytes) + "," + std::to_string(bytes + *size) + "]}";
    bytes += *size;
  }
  out += "}";
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) return "tensor " + QuotedName(*twice) + " is declared twice";
  out.append((8 - out.size() % 8) % 8, ' ');
  if (out.size() > kMaxHeaderBytes)
    return "the header would be longer than " + std::to_string(kMaxHeaderBytes) + " bytes, the limit of readers";
  std::string length;
  for (size_t i = 0; i < kHeaderLengthBytes; ++i) length += static_cast<char>(out.size() >> (8 * i) & 0xFF);
  out = length + out;
  return std::nullopt;
}

}  // namespace

Result<WrittenHeader> WriteHeader(const std::string& path, const std::vector<TensorSpec>& order,
                                  const std::map<std::string, std::string>& metadata) {
  WrittenHeader header;
  if (std::optional<std::string> wrong = HeaderText(order, metadata, header.data_bytes, header.text)) {
    return WriteFailed(path, *wrong);
  }
  return header;
}

void SafetensorsWriter::SortForWriting(std::vector<TensorSpec>& tensors) {
  std::ranges::sort(tensors, [](const TensorSpec& a, const TensorSpec& b) {
    // The order of DType is the order of the Rust reader's enum, by which its writer sorts.
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorSpec> tensors,
                                                    const std::map<std::string, std::string>& metadata,
                                                    Storage* storage) {
  SafetensorsWriter writer;
  writer.path_ = path;
  SortForWriting(tensors);
  writer.order_ = std::move(tensors);
  Result<WrittenHeader> header = WriteHeader(path, writer.order_, metadata);
  if (!header.ok()) return header.diagnostics();
  writer.expected_ = header.value().data_bytes;
  writer.buffer_ = std::move(header.value().text);
  if (storage == nullptr) {
    writer.own_storage_ = PosixStorage();
    storage = writer.own_storage_.get();
  }
  Result<StagedFile> file = StagedFile::Create(*storage, path);
  if (!file.ok()) return file.diagnostics();
  writer.file_ = std::move(file).value();
  return writer;
}

Diagnostic SafetensorsWriter::Failed(const std::string& why) const { return WriteFailed(path_, why); }

Failure SafetensorsWriter::Flush() {
  const std::string waiting = std::exchange(buffer_, {});
  return file_->Append(waiting.data(), waiting.size());
}

Failure SafetensorsWriter::Append(const void* data, uint64_t bytes) {
  Check(file_.has_value(), "Append after Finish");
  if (bytes > expected_ - appended_) {
    return Failed("more than the declared " + std::to_string(expected_) + " bytes were appended");
  }
  appended_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) {
    if (Failure failed = Flush()) return failed;
  }
  if (bytes > kBufferBytes) return file_->Append(data, bytes);
  buffer_.append(static_cast<const char*>(data), bytes);
  return std::nullopt;
}

Failure SafetensorsWriter::Finish() {
  Check(file_.has_value(), "Finish was called twice");
  if (appended_ != expected_) {
    return Failed("only " + std::to_string(appended_) + " of the declared " + std::to_string(expected_) +
                  " bytes were appended");
  }
  if (Failure failed = Flush()) return failed;
  Failure failed = file_->Commit();
  if (!failed) file_.reset();
  return failed;
}

Failure WriteSafetensors(const std::string& path, const std::vector<TensorData>& tensors,
                         const std::map<std::string, std::string>& metadata, Storage* storage) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const void*> data;
  for (const TensorData& tensor : tensors) {
    specs.push_back(tensor.spec);
    data[tensor.spec.name] = tensor.data;
  }
  Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path, std::move(specs), metadata, storage);
  if (!writer.ok()) return writer.diagnostics().front();
  for (const TensorSpec& spec : writer.value().order()) {
    if (Failure failed = writer.value().Append(data.at(spec.name), *BytesOfSpec(spec))) return failed;
  }
  return writer.value().Finish();
}

}  // namespace moonshard

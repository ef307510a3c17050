#include "engine/io/safetensors/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/core/base/json.h"
#include "engine/core/base/text.h"
#include "engine/io/safetensors/header.h"
#include "engine/io/safetensors/header_json.h"

namespace moonshard {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr uint64_t kMostWrittenPerCall = 0x7ffff000;

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
      return "tensor " + QuotedName(spec.name) + " cannot have the shape " + ShapeToString(spec.shape) + " of " +
             ToString(spec.dtype);
    }
    const Result<JsonValue> read_back = ParseJson(JsonQuoted(spec.name), "");
    if (!read_back.ok() || read_back.value() != JsonValue(spec.name)) {
      return "the name " + QuotedName(spec.name) + " is not UTF-8";
    }
    if (spec.name == "__metadata__") return "no tensor can be called '__metadata__'";
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
  if (out.size() > kMaxHeaderBytes) return "the header would be longer than a reader accepts";
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
                                                    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  writer.path_ = path;
  SortForWriting(tensors);
  writer.order_ = std::move(tensors);
  Result<WrittenHeader> header = WriteHeader(path, writer.order_, metadata);
  if (!header.ok()) return header.diagnostics();
  writer.expected_ = header.value().data_bytes;
  writer.buffer_ = std::move(header.value().text);
  // Unique by process and by try: two writers of one path do not share it.
  for (int attempt = 0; writer.descriptor_ < 0; ++attempt) {
    writer.temporary_ = path + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
    writer.descriptor_ = ::open(writer.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer.descriptor_ < 0 && errno != EEXIST) {
      const Diagnostic failed = writer.Failed(std::strerror(errno));
      writer.temporary_.clear();
      return failed;
    }
  }
  return writer;
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept { *this = std::move(other); }

SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(temporary_, other.temporary_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(order_, other.order_);
  std::swap(expected_, other.expected_);
  std::swap(appended_, other.appended_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Diagnostic SafetensorsWriter::Failed(const std::string& why) const { return WriteFailed(path_, why); }

std::optional<Diagnostic> SafetensorsWriter::Write(const char* data, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t count = ::write(descriptor_, data, std::min(bytes, kMostWrittenPerCall));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed(std::strerror(errno));
    data += count;
    bytes -= static_cast<uint64_t>(count);
  }
  return std::nullopt;
}

std::optional<Diagnostic> SafetensorsWriter::Flush() {
  const std::string waiting = std::exchange(buffer_, {});
  return Write(waiting.data(), waiting.size());
}

std::optional<Diagnostic> SafetensorsWriter::Append(const void* data, uint64_t bytes) {
  Check(descriptor_ >= 0, "Append after Finish");
  if (bytes > expected_ - appended_) {
    return Failed("more bytes than the " + std::to_string(expected_) + " that were declared");
  }
  appended_ += bytes;
  if (buffer_.size() + bytes > kBufferBytes) {
    if (std::optional<Diagnostic> error = Flush()) return error;
  }
  if (bytes > kBufferBytes) return Write(static_cast<const char*>(data), bytes);
  buffer_.append(static_cast<const char*>(data), bytes);
  return std::nullopt;
}

std::optional<Diagnostic> SafetensorsWriter::Finish() {
  Check(descriptor_ >= 0, "Finish of a writer that has finished");
  if (appended_ != expected_) {
    return Failed("only " + std::to_string(appended_) + " of the " + std::to_string(expected_) +
                  " bytes that were declared have come");
  }
  if (std::optional<Diagnostic> error = Flush()) return error;
  if (::fsync(descriptor_) != 0) return Failed(std::strerror(errno));
  if (::close(std::exchange(descriptor_, -1)) != 0) return Failed(std::strerror(errno));
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failed(std::strerror(errno));
  temporary_.clear();
  const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
  const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Failed(std::strerror(errno));
  const bool synced = ::fsync(folder) == 0;
  const int error = errno;
  ::close(folder);
  // Some file systems cannot sync a directory and say so.
  if (!synced && error != EINVAL) return Failed(std::strerror(error));
  return std::nullopt;
}

std::optional<Diagnostic> WriteSafetensors(const std::string& path, const std::vector<TensorData>& tensors,
                                           const std::map<std::string, std::string>& metadata) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const void*> data;
  for (const TensorData& tensor : tensors) {
    specs.push_back(tensor.spec);
    data[tensor.spec.name] = tensor.data;
  }
  Result<SafetensorsWriter> writer = SafetensorsWriter::Create(path, std::move(specs), metadata);
  if (!writer.ok()) return writer.diagnostics().front();
  for (const TensorSpec& spec : writer.value().order()) {
    if (std::optional<Diagnostic> error = writer.value().Append(data.at(spec.name), *BytesOfSpec(spec))) return error;
  }
  return writer.value().Finish();
}

}  // namespace moonshard

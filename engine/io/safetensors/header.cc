// A header is checked as strictly as the format's own reader (the Rust crate) does it, and with all faults reported at
// once: tensors sorted by their begin must follow on each other without a hole or an overlap, from 0 to the end of the
// file, each as long as its shape needs. Then every byte of the file belongs to one tensor, and no offset in the file
// needs to be checked again. Sizes come from an untrusted file: every product and sum is checked for overflow before it
// is compared.
#include "engine/io/safetensors/header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "engine/core/base/text.h"
#include "engine/io/safetensors/header_json.h"
#include "engine/io/storage/file.h"

namespace moonshard {
namespace {

constexpr size_t kMostComplaints = 20;
// Of a tensor's path: each is a module, whose path is as long as its depth.
constexpr size_t kMostComponents = 256;

std::string Range(uint64_t begin, uint64_t end) {
  return "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
}

std::string ShapeText(const RawTensor& tensor) {
  std::string out;
  for (uint64_t size : tensor.shape) out += (out.empty() ? "" : ", ") + std::to_string(size);
  return std::string(SafetensorsName(tensor.dtype)) + " [" + out + "]";
}

// Bits of a tensor, multiplied from the left as the Rust reader does: [0, 2^63, 4] has none, [2^63, 4, 0] overflows.
std::optional<uint64_t> BitsOf(const RawTensor& tensor) {
  uint64_t bits = 1;
  for (uint64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bits, static_cast<uint64_t>(BitsOf(tensor.dtype)), &bits)) return std::nullopt;
  return bits;
}

// Where the tensors' bytes stop, having checked each tensor against the one before it and against its own shape.
uint64_t CheckTensors(const std::vector<RawTensor>& sorted, const std::string& file_name, Diagnostics& found) {
  uint64_t reached = 0;
  size_t complaints = 0;
  const auto complain = [&](const RawTensor& tensor, const std::string& what, std::string declared,
                            std::string required) {
    if (++complaints > kMostComplaints) return;
    Diagnostic d = BadSafetensors(file_name, tensor.name, "tensor " + QuotedName(tensor.name) + " " + what);
    d.declared = std::move(declared);
    d.required = std::move(required);
    found.push_back(std::move(d));
  };
  for (const RawTensor& tensor : sorted) {
    const auto components = 1 + static_cast<size_t>(std::ranges::count(tensor.name, '.'));
    if (components > kMostComponents) {
      complain(tensor, "has a name of too many components", std::to_string(components),
               "at most " + std::to_string(kMostComponents) + ", separated by dots");
    }
    const std::string declared = Range(tensor.begin, tensor.end);
    if (tensor.end < tensor.begin) {
      complain(tensor, "ends before it begins", declared, "begin <= end");
      continue;
    }
    if (tensor.begin != reached) {
      complain(tensor, tensor.begin > reached ? "leaves a gap before it" : "overlaps the tensor before it", declared,
               "begin at " + std::to_string(reached));
    }
    reached = std::max(reached, tensor.end);
    const std::optional<uint64_t> bits = BitsOf(tensor);
    if (!bits) {
      complain(tensor, "has a shape whose size overflows", ShapeText(tensor), "less than 2^64 bits");
    } else if (*bits % 8 != 0) {
      complain(tensor, "does not fill its last byte", ShapeText(tensor), "a multiple of 8 bits");
    } else if (tensor.end - tensor.begin != *bits / 8) {
      complain(tensor, "has a byte range whose size does not match its shape", declared,
               std::to_string(*bits / 8) + " bytes for " + ShapeText(tensor));
    }
  }
  if (complaints > kMostComplaints) {
    found.push_back(
        BadSafetensors(file_name, "", std::to_string(complaints - kMostComplaints) + " more tensors have such errors"));
  }
  return reached;
}

void CheckFileLength(const Header& header, uint64_t file_bytes, const std::string& file_name, Diagnostics& found) {
  // data_begin is at most 100,000,008: the sum can pass 2^64 only for wrong offsets.
  uint64_t wanted = 0;
  const bool overflow = __builtin_add_overflow(header.data_begin, header.data_bytes, &wanted);
  if (!overflow && wanted == file_bytes) return;
  const bool shorter = overflow || file_bytes < wanted;
  Diagnostic d = BadSafetensors(file_name, "",
                                shorter ? "the file is shorter than its header declares: it is truncated"
                                        : "the file continues after its last tensor");
  d.declared = std::to_string(file_bytes) + " bytes";
  d.required = (overflow ? "more than 2^64" : std::to_string(wanted)) + " bytes: " + std::to_string(header.data_begin) +
               " of the header, " + std::to_string(header.data_bytes) + " of tensors";
  if (file_bytes == header.data_begin)
    d.help = "the file contains only the header; commands that read weights need the full file";
  found.push_back(std::move(d));
}

// Length of the JSON, from the first 8 bytes; complains where it cannot be.
std::optional<uint64_t> JsonBytes(std::string_view head, uint64_t file_bytes, const std::string& file_name,
                                  Diagnostics& found) {
  if (file_bytes < kHeaderLengthBytes || head.size() < kHeaderLengthBytes) {
    found.push_back(BadSafetensors(
        file_name, "", "a file of " + std::to_string(file_bytes) + " bytes is too short for a safetensors header"));
    return std::nullopt;
  }
  uint64_t length = 0;
  for (size_t i = kHeaderLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
  if (length > kMaxHeaderBytes || length > file_bytes - kHeaderLengthBytes) {
    Diagnostic d = BadSafetensors(file_name, "",
                                  "the length of the header is invalid: this is not a safetensors file, or it is "
                                  "truncated");
    d.declared = std::to_string(length) + " bytes";
    d.required = "at most " + std::to_string(std::min(kMaxHeaderBytes, file_bytes - kHeaderLengthBytes)) + " bytes";
    found.push_back(std::move(d));
    return std::nullopt;
  }
  return length;
}

}  // namespace

Result<Header> ParseHeader(std::string_view head, uint64_t file_bytes, const std::string& file_name,
                           HeaderOptions options) {
  Diagnostics found;
  const std::optional<uint64_t> length = JsonBytes(head, file_bytes, file_name, found);
  if (!length) return found;
  Check(head.size() >= kHeaderLengthBytes + *length, "ParseHeader requires the full header");
  HeaderJson json = ParseHeaderJson(head.substr(kHeaderLengthBytes, *length), file_name, found);
  if (HasErrors(found)) return found;

  std::ranges::sort(json.tensors, {}, [](const RawTensor& t) { return std::tie(t.begin, t.end, t.name); });
  Header header;
  header.data_begin = kHeaderLengthBytes + *length;
  header.data_bytes = CheckTensors(json.tensors, file_name, found);
  header.header_only = file_bytes == header.data_begin && header.data_bytes > 0;
  if (!HasErrors(found) && !(header.header_only && options.allow_header_only)) {
    CheckFileLength(header, file_bytes, file_name, found);
  }
  if (HasErrors(found)) return found;
  header.metadata = std::move(json.metadata);
  constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();
  for (RawTensor& tensor : json.tensors) {
    HeaderTensor& out = header.tensors.emplace_back();
    out.name = std::move(tensor.name);
    out.dtype = tensor.dtype;
    for (uint64_t size : tensor.shape) out.shape.push_back(static_cast<int64_t>(std::min(size, kLargest)));
    out.begin = tensor.begin;
    out.end = tensor.end;
  }
  return {std::move(header), std::move(found)};
}

Result<Header> ReadHeader(const std::string& path, HeaderOptions options) {
  Result<File> opened = File::Open(path);
  if (!opened.ok()) return opened.diagnostics();
  const File& file = opened.value();
  Diagnostics found;
  std::string head(std::min(kHeaderLengthBytes, file.bytes()), '\0');
  if (std::optional<Diagnostic> error = file.Read(0, head.data(), head.size())) return *error;
  const std::optional<uint64_t> length = JsonBytes(head, file.bytes(), path, found);
  if (!length) return found;
  head.resize(kHeaderLengthBytes + *length);
  if (std::optional<Diagnostic> error = file.Read(0, head.data(), head.size())) return *error;
  return ParseHeader(head, file.bytes(), path, options);
}

}  // namespace moonshard

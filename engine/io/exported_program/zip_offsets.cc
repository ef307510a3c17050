#include "engine/io/exported_program/zip_offsets.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/io/storage/file.h"

namespace moonshard {
namespace {

constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kEntryBytes = 46;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20;
constexpr uint64_t kLongestComment = 65535;
constexpr uint64_t kLongestDirectory = uint64_t{64} << 20;
constexpr uint64_t kIn64 = 0xffffffff;  // the number is in a ZIP64 record
constexpr uint16_t kExtra64 = 1;

struct BadZip {
  std::string message;
};

// Reads little-endian numbers; every position is checked.
class ZipBytes {
 public:
  explicit ZipBytes(std::string_view bytes) : bytes_(bytes) {}
  uint64_t Number(uint64_t at, uint64_t bytes) const {
    Require(at, bytes);
    uint64_t value = 0;
    for (uint64_t i = bytes; i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes_[at + i - 1]);
    return value;
  }
  std::string_view Text(uint64_t at, uint64_t bytes) const {
    Require(at, bytes);
    return bytes_.substr(at, bytes);
  }
  uint64_t size() const { return bytes_.size(); }

 private:
  void Require(uint64_t at, uint64_t bytes) const {
    if (at > bytes_.size() || bytes > bytes_.size() - at) throw BadZip{"a record of the zip file is truncated"};
  }
  std::string_view bytes_;
};

// The file, or its bytes.
class ZipSource {
 public:
  explicit ZipSource(const File& file) : file_(&file), bytes_(file.bytes()) {}
  explicit ZipSource(std::string_view text) : text_(text), bytes_(text.size()) {}
  uint64_t bytes() const { return bytes_; }
  std::string Read(uint64_t at, uint64_t bytes) const {
    if (at > bytes_ || bytes > bytes_ - at) throw BadZip{"a record of the zip file is outside of the file"};
    if (file_ == nullptr) return std::string(text_.substr(at, bytes));
    std::string out(bytes, '\0');
    if (const std::optional<Diagnostic> error = file_->Read(at, out.data(), bytes)) throw PlanError({*error});
    return out;
  }

 private:
  const File* file_ = nullptr;
  std::string_view text_;
  uint64_t bytes_ = 0;
};

struct Directory {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t entries = 0;
};

// The end record is the last one of the file, before a comment of any text.
Directory FindDirectory(const ZipSource& file) {
  const uint64_t tail = std::min(file.bytes(), kEndBytes + kLongestComment);
  const uint64_t begin = file.bytes() - tail;
  const std::string text = file.Read(begin, tail);
  const ZipBytes bytes(text);
  for (uint64_t at = tail < kEndBytes ? 0 : tail - kEndBytes + 1; at-- > 0;) {
    if (bytes.Number(at, 4) != kEndSignature || at + kEndBytes + bytes.Number(at + 20, 2) != tail) continue;
    Directory out{bytes.Number(at + 16, 4), bytes.Number(at + 12, 4), bytes.Number(at + 10, 2)};
    const uint64_t end = begin + at;
    if (end < kLocator64Bytes) return out;
    const std::string locator = file.Read(end - kLocator64Bytes, kLocator64Bytes);
    if (ZipBytes(locator).Number(0, 4) != kLocator64Signature) return out;
    const std::string record = file.Read(ZipBytes(locator).Number(8, 8), kEnd64Bytes);
    const ZipBytes end64(record);
    if (end64.Number(0, 4) != kEnd64Signature) throw BadZip{"the ZIP64 record of the zip file is missing"};
    return {end64.Number(48, 8), end64.Number(40, 8), end64.Number(32, 8)};
  }
  throw BadZip{"the zip file has no end record"};
}

// The offset of an entry's local header: in the entry, or in its ZIP64 extra field, after the sizes that are there too.
uint64_t LocalOffset(const ZipBytes& directory, uint64_t entry) {
  const uint64_t offset = directory.Number(entry + 42, 4);
  if (offset != kIn64) return offset;
  const uint64_t names = directory.Number(entry + 28, 2);
  const uint64_t extras = directory.Number(entry + 30, 2);
  const uint64_t sizes = uint64_t{8} * static_cast<uint64_t>((directory.Number(entry + 24, 4) == kIn64 ? 1 : 0) +
                                                             (directory.Number(entry + 20, 4) == kIn64 ? 1 : 0));
  const uint64_t begin = entry + kEntryBytes + names;
  for (uint64_t at = begin; at + 4 <= begin + extras;) {
    const uint64_t length = directory.Number(at + 2, 2);
    if (directory.Number(at, 2) == kExtra64 && length >= sizes + 8) return directory.Number(at + 4 + sizes, 8);
    at += 4 + length;
  }
  throw BadZip{"an entry of the zip file has no offset"};
}

std::map<std::string, uint64_t, std::less<>> OffsetsIn(const ZipSource& file) {
  const Directory found = FindDirectory(file);
  if (found.bytes > kLongestDirectory) throw BadZip{"the directory of the zip file is longer than 64 MiB"};
  const std::string text = file.Read(found.begin, found.bytes);
  const ZipBytes directory(text);
  std::map<std::string, uint64_t, std::less<>> out;
  uint64_t entry = 0;
  for (uint64_t i = 0; i < found.entries; ++i) {
    if (directory.Number(entry, 4) != kEntrySignature) throw BadZip{"the directory of the zip file is damaged"};
    const uint64_t names = directory.Number(entry + 28, 2);
    std::string name(directory.Text(entry + kEntryBytes, names));
    const uint64_t local = LocalOffset(directory, entry);
    // The extra fields of the local header, which align the bytes, are not those of the directory.
    const std::string header = file.Read(local, kLocalBytes);
    const ZipBytes fields(header);
    if (fields.Number(0, 4) != kLocalSignature) throw BadZip{"entry '" + name + "' has no header"};
    const uint64_t begin = local + kLocalBytes + fields.Number(26, 2) + fields.Number(28, 2);
    if (begin > file.bytes()) throw BadZip{"entry '" + name + "' does not lie within the file"};
    name.erase(0, name.find('/') == std::string::npos ? 0 : name.find('/') + 1);
    if (!out.emplace(name, begin).second) throw BadZip{"two entries of the zip file have the name '" + name + "'"};
    entry += kEntryBytes + names + directory.Number(entry + 30, 2) + directory.Number(entry + 32, 2);
  }
  return out;
}

Result<std::map<std::string, uint64_t, std::less<>>> OffsetsOrError(const ZipSource& source, const std::string& path) {
  try {
    return OffsetsIn(source);
  } catch (const BadZip& bad) {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, bad.message);
    d.path = path;
    return d;
  } catch (const PlanError& error) {
    return error.diagnostics();
  }
}

}  // namespace

Result<std::map<std::string, uint64_t, std::less<>>> ZipOffsets(const std::string& path) {
  const Result<File> file = File::Open(path);
  if (!file.ok()) return file.diagnostics();
  return OffsetsOrError(ZipSource(file.value()), path);
}

Result<std::map<std::string, uint64_t, std::less<>>> ZipOffsetsOfBytes(std::string_view bytes,
                                                                       const std::string& path) {
  return OffsetsOrError(ZipSource(bytes), path);
}

}  // namespace moonshard

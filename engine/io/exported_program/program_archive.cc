#include "engine/io/exported_program/program_archive.h"

#include <sys/stat.h>
#include <zip.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include "engine/core/base/json.h"
#include "engine/core/base/json_fields.h"
#include "engine/core/base/small_file.h"

namespace moonshard {
namespace {

Diagnostic BadArchive(const std::string& path, const std::string& message, const std::string& help = "") {
  Diagnostic d = MakeDiagnostic(Finding::kBadProgram, message);
  d.path = path;
  d.help = help.empty() ? "export the model again with moonshard's script (`moonshard export-script` prints its path)"
                        : help;
  return d;
}

// What libzip does not open, for `reason`; `begin`: the first bytes. Where they are not those of a zip archive, another
// export does not help.
Diagnostic NotReadable(const std::string& path, std::string_view begin, const std::string& reason) {
  constexpr std::string_view kSignature = "PK";
  if (begin.starts_with(kSignature)) return BadArchive(path, "the program is not a readable zip archive: " + reason);
  Diagnostic d = BadArchive(
      path,
      begin.empty() ? "the program is an empty file" : "the file is not an exported program: it is not a zip archive",
      "give the path of an archive; `moonshard export-script` prints the path of the script that writes it");
  d.required = std::string("an archive (.pt2), or a directory of archives with its ") + kProgramIndex;
  return d;
}

std::string FirstBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string out(4, '\0');
  file.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<size_t>(file.gcount()));
  return out;
}

}  // namespace

struct ProgramArchive::Zip {
  std::string bytes;  // of an archive in memory; libzip reads from them
  zip_t* handle = nullptr;
  ~Zip() {
    if (handle != nullptr) zip_discard(handle);
  }
};

Result<ProgramArchive> ProgramArchive::Open(const std::string& path) {
  const auto cannot_read = [&](Finding finding, const std::string& reason) {
    Diagnostic d = MakeDiagnostic(finding, "the program cannot be read: " + reason);
    d.path = path;
    return d;
  };
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) {
    return cannot_read(errno == ENOENT ? Finding::kFileNotFound : Finding::kFileUnreadable, std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    Diagnostic d = MakeDiagnostic(Finding::kFileUnreadable, "the program is not a regular file");
    d.path = path;
    d.required = std::string("an archive (.pt2), or a directory of archives with its ") + kProgramIndex;
    return d;
  }
  ProgramArchive out;
  out.path_ = path;
  out.zip_ = std::make_shared<Zip>();
  int code = 0;
  out.zip_->handle = zip_open(path.c_str(), ZIP_RDONLY, &code);
  if (out.zip_->handle == nullptr) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    const std::string reason = zip_error_strerror(&error);
    zip_error_fini(&error);
    if (code == ZIP_ER_OPEN || code == ZIP_ER_READ) return cannot_read(Finding::kFileUnreadable, reason);
    return NotReadable(path, FirstBytes(path), reason);
  }
  if (Diagnostics errors = out.ListEntries(static_cast<uint64_t>(status.st_size)); !errors.empty()) return errors;
  return out;
}

Result<ProgramArchive> ProgramArchive::FromBytes(std::string bytes, const std::string& path) {
  ProgramArchive out;
  out.path_ = path;
  out.zip_ = std::make_shared<Zip>();
  out.zip_->bytes = std::move(bytes);
  const std::string& held = out.zip_->bytes;
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(held.data(), held.size(), 0, &error);
  if (source != nullptr) out.zip_->handle = zip_open_from_source(source, ZIP_RDONLY, &error);
  const std::string reason = out.zip_->handle == nullptr ? zip_error_strerror(&error) : "";
  if (out.zip_->handle == nullptr && source != nullptr) zip_source_free(source);
  zip_error_fini(&error);
  if (out.zip_->handle == nullptr || held.empty()) return NotReadable(path, held, reason);
  if (Diagnostics errors = out.ListEntries(held.size()); !errors.empty()) return errors;
  return out;
}

Diagnostics ProgramArchive::ListEntries(uint64_t file_bytes) {
  const zip_int64_t count = zip_get_num_entries(zip_->handle, 0);
  Diagnostics errors;
  for (zip_int64_t i = 0; i < count; ++i) {
    zip_stat_t entry;
    zip_stat_init(&entry);
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(zip_->handle, static_cast<zip_uint64_t>(i), 0, &entry) != 0 ||
        (entry.valid & kNeeded) != kNeeded) {
      return {BadArchive(path_, "entry " + std::to_string(i) + " of the archive cannot be read")};
    }
    std::string name = entry.name;
    name.erase(0, name.find('/') == std::string::npos ? 0 : name.find('/') + 1);
    if (entry.comp_method != ZIP_CM_STORE || entry.encryption_method != ZIP_EM_NONE) {
      errors.push_back(BadArchive(path_, "entry '" + name + "' is compressed or encrypted",
                                  "write the archive without compression, as torch.export.save does"));
    } else if (entry.size > file_bytes) {
      errors.push_back(BadArchive(path_, "entry '" + name + "' declares more bytes than the file has"));
    } else if (!entries_.emplace(name, Entry{static_cast<uint64_t>(i), entry.size, entry.crc}).second) {
      errors.push_back(BadArchive(path_, "two entries of the archive have the name '" + name + "'"));
    }
    constexpr size_t kShownErrors = 10;
    if (errors.size() >= kShownErrors) break;
  }
  return errors;
}

std::vector<std::string> ProgramArchive::entries() const {
  std::vector<std::string> out;
  for (const auto& [name, entry] : entries_) out.push_back(name);
  return out;
}

bool ProgramArchive::Has(std::string_view entry) const { return entries_.find(entry) != entries_.end(); }

// libzip compares the check sum when the last byte has been read, and then fails that read.
Result<std::string> ProgramArchive::Read(std::string_view entry) const {
  const auto found = entries_.find(entry);
  if (found == entries_.end()) return BadArchive(path_, "the archive has no entry '" + std::string(entry) + "'");
  std::string bytes(found->second.bytes, '\0');
  zip_file_t* file = zip_fopen_index(zip_->handle, found->second.index, 0);
  if (file == nullptr) {
    return BadArchive(path_, "entry '" + found->first + "' cannot be read: " + zip_strerror(zip_->handle));
  }
  const zip_int64_t got = zip_fread(file, bytes.data(), bytes.size());
  char beyond = 0;
  const bool whole = got == static_cast<zip_int64_t>(bytes.size()) && zip_fread(file, &beyond, 1) == 0;
  const std::string reason = whole ? "" : zip_file_strerror(file);
  zip_fclose(file);
  if (!whole) return BadArchive(path_, "entry '" + found->first + "' is damaged or truncated: " + reason);
  return bytes;
}

namespace {

constexpr const char* kGraphEntry = "models/model.json";
constexpr const char* kRecordEntry = "extra/moonshard.json";

Result<std::string> ReadJsonEntry(const ProgramArchive& archive, const std::string& entry) {
  const Diagnostics found =
      CheckFileSize(archive.path() + ": " + entry, SmallFile::kProgramEntry, archive.BytesOf(entry).value_or(0));
  return found.empty() ? archive.Read(entry) : Result<std::string>(found);
}

// Where the bytes of tensors are: data/weights/ for parameters and persistent buffers, data/constants/ for the rest,
// each with a table from names to entries. Tensors that were traced without values have an empty entry, which is none.
std::optional<Diagnostic> FindValues(const ProgramArchive& archive, const std::string& folder,
                                     ExportedProgram& program) {
  const std::string base = "data/" + folder + "/";
  const std::string table = base + "model_" + folder + "_config.json";
  if (!archive.Has(table)) return std::nullopt;
  Result<std::string> text = ReadJsonEntry(archive, table);
  if (!text.ok()) return text.diagnostics().front();
  Result<JsonValue> json = ParseJson(text.value(), archive.path() + ": " + table, JsonDialect::kPython);
  if (!json.ok()) return BadArchive(archive.path() + ": " + table, json.diagnostics().front().message);
  std::map<std::string, ProgramTensor*, std::less<>> by_name;
  for (ProgramTensor& tensor : program.tensors) by_name[tensor.name] = &tensor;
  std::string at = "the table";
  int64_t repeated = 0;  // elements, of all tensors together
  try {
    for (const auto& [name, entry] : json_fields::Object(json.value(), "config")) {
      at = "tensor '" + name + "'";
      const auto found = by_name.find(name);
      if (found == by_name.end()) continue;
      ProgramTensor& tensor = *found->second;
      const std::string path = base + json_fields::Text(entry, "path_name");
      const JsonValue* pickled = entry.Find("use_pickle");
      if (pickled != nullptr && !pickled->is_bool()) json_fields::FailKind("use_pickle", "true or false", *pickled);
      if (pickled != nullptr && pickled->AsBool()) json_fields::Fail("its values are pickled, which is not supported");
      const std::optional<uint64_t> bytes = archive.BytesOf(path);
      if (!bytes) json_fields::Fail("the archive has no entry '" + path + "'");
      // Without weights all tensors of checkpoints share one empty entry.
      if (*bytes == 0 && folder == "weights") continue;
      const JsonValue& meta = json_fields::Required(entry, "tensor_meta");
      // The last element that the strides reach must be within the bytes.
      int64_t last = 0;
      int64_t elements = 1;
      bool empty = false;
      std::vector<int64_t> strides;
      const JsonValue::Array& sizes = json_fields::List(meta, "sizes");
      for (const JsonValue& stride : json_fields::List(meta, "strides")) {
        strides.push_back(json_fields::Size(stride, "as_int"));
      }
      if (sizes.size() != tensor.shape.size() || strides.size() != sizes.size()) {
        json_fields::Fail("its values have another number of dims than the tensor");
      }
      for (size_t i = 0; i < sizes.size(); ++i) {
        const int64_t size = json_fields::Size(sizes[i], "as_int");
        if (size != tensor.shape[i]) json_fields::Fail("its values have another shape than the tensor");
        int64_t reach = 0;
        if (__builtin_mul_overflow(std::max<int64_t>(size - 1, 0), strides[i], &reach) ||
            __builtin_add_overflow(last, reach, &last)) {
          json_fields::Fail("the last index of its strides does not fit into int64");
        }
        if (!json_fields::MultiplySize(elements, size))
          json_fields::Fail("its number of elements does not fit into int64");
        empty = empty || size == 0;
      }
      const int64_t offset = json_fields::Size(json_fields::Required(meta, "storage_offset"), "as_int");
      if (json_fields::Integer(meta, "dtype") != tensor.dtype)
        json_fields::Fail("its values have another dtype than the tensor");
      const std::optional<DType> dtype = DTypeFromExported(tensor.dtype);
      if (!dtype) json_fields::Fail("its values have a dtype that is not supported");
      const auto held = static_cast<int64_t>(*bytes) * 8 / BitsOf(*dtype);
      if (!empty && (last >= held || offset > held - 1 - last)) {
        json_fields::Fail("its values need more bytes than entry '" + path + "' has");
      }
      // A dim of stride 0 says an element many times; the tensor that is made of it has a place for each.
      constexpr int64_t kMostRepeated = int64_t{1} << 26;
      if (!empty && elements > held) {
        if (elements > kMostRepeated - repeated) {
          json_fields::Fail("its strides repeat " + std::to_string(held) + " elements to " + std::to_string(elements) +
                            "; the limit for all tensors together is " + std::to_string(kMostRepeated));
        }
        repeated += elements;
      }
      tensor.entry = path;
      tensor.entry_dtype = tensor.dtype;
      tensor.strides = std::move(strides);
      tensor.storage_offset = offset;
    }
  } catch (const json_fields::Fault& fault) {
    return BadArchive(archive.path() + ": " + table, at + ": " + fault.message);
  }
  return std::nullopt;
}

}  // namespace

// Tensors that the record ties are one, so entries of their own have the same bytes: of others one would be dropped.
std::optional<Diagnostic> CheckTies(const ProgramArchive& archive, const ExportedProgram& program) {
  for (const ProgramTensor& tensor : program.tensors) {
    if (tensor.tied_to < 0 || tensor.entry.empty()) continue;
    const ProgramTensor& first = program.tensors[static_cast<size_t>(tensor.tied_to)];
    if (first.entry.empty() || first.entry == tensor.entry) continue;
    const ProgramArchive::Entry& own = archive.entries_.find(tensor.entry)->second;
    const ProgramArchive::Entry& other = archive.entries_.find(first.entry)->second;
    if (own.bytes == other.bytes && own.crc == other.crc && tensor.strides == first.strides &&
        tensor.storage_offset == first.storage_offset) {
      continue;
    }
    return BadArchive(archive.path(),
                      "'" + first.name + "' and '" + tensor.name + "' are tied but have different values");
  }
  return std::nullopt;
}

namespace {

bool IsZero(const ProgramArchive& archive, const ProgramTensor& tensor) {
  constexpr uint64_t kLargestElement = 16;
  if (tensor.kind != ProgramTensor::Kind::kConstant || tensor.entry.empty() ||
      archive.BytesOf(tensor.entry).value_or(kLargestElement + 1) > kLargestElement ||
      std::ranges::any_of(tensor.shape, [](int64_t size) { return size != 1; })) {
    return false;
  }
  const Result<std::string> bytes = archive.Read(tensor.entry);
  return bytes.ok() && std::ranges::all_of(bytes.value(), [](char byte) { return byte == 0; });
}

}  // namespace

Result<ExportedProgram> ReadProgram(const ProgramArchive& archive) {
  if (!archive.Has(kRecordEntry)) {
    return BadArchive(archive.path(), "the archive has no entry '" + std::string(kRecordEntry) + "'",
                      "export the model with moonshard's script (`moonshard export-script` prints its path)");
  }
  Result<std::string> graph = ReadJsonEntry(archive, kGraphEntry);
  if (!graph.ok()) return graph.diagnostics();
  Result<std::string> record = ReadJsonEntry(archive, kRecordEntry);
  if (!record.ok()) return record.diagnostics();
  Result<ExportedProgram> program = ParseProgram(graph.value(), record.value(), archive.path());
  if (!program.ok()) return program;
  for (const char* folder : {"weights", "constants"}) {
    if (auto error = FindValues(archive, folder, program.value())) return *error;
  }
  if (auto error = CheckTies(archive, program.value())) return *error;
  for (ProgramTensor& tensor : program.value().tensors) {
    tensor.is_zero = IsZero(archive, tensor);
    const bool in_archive = tensor.kind == ProgramTensor::Kind::kConstant ||
                            (tensor.kind == ProgramTensor::Kind::kBuffer && !tensor.persistent);
    if (in_archive && tensor.entry.empty() && tensor.value >= 0) {
      return BadArchive(archive.path(), "the values of '" + tensor.name + "' are missing");
    }
  }
  return program;
}

std::optional<uint64_t> ProgramArchive::BytesOf(std::string_view entry) const {
  const auto found = entries_.find(entry);
  return found == entries_.end() ? std::nullopt : std::optional<uint64_t>(found->second.bytes);
}

bool IsProgramPath(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".pt2") || std::filesystem::exists(std::filesystem::path(path) / kProgramIndex, ignored);
}

namespace {

// What the index has for each archive.
struct IndexEntry {
  std::string file;
  std::vector<std::pair<int64_t, int64_t>> lengths;
};

std::vector<IndexEntry> ReadIndexEntries(const JsonValue& json) {
  constexpr int64_t kFormat = 1;
  if (const int64_t format = json_fields::Integer(json, "format"); format != kFormat) {
    json_fields::Fail("the index has format " + std::to_string(format) + ", required: 1");
  }
  std::vector<IndexEntry> out;
  for (const JsonValue& program : json_fields::List(json, "programs")) {
    IndexEntry entry;
    entry.file = json_fields::Text(program, "file");
    if (entry.file.find('/') != std::string::npos || !entry.file.ends_with(".pt2")) {
      json_fields::Fail("'" + entry.file + "' is not the name of a .pt2 file in the directory of the index");
    }
    for (const JsonValue& range : json_fields::List(program, "ranges")) {
      if (!range.is_array() || range.AsArray().size() != 2) json_fields::Fail("a range is not a pair of numbers");
      const int64_t first = json_fields::IntegerOf(range.AsArray()[0], "ranges");
      const int64_t last = json_fields::IntegerOf(range.AsArray()[1], "ranges");
      if (first < 0 || last < first) {
        json_fields::Fail("the range " + std::to_string(first) + " to " + std::to_string(last) + " of '" + entry.file +
                          "' is not a range of lengths");
      }
      entry.lengths.emplace_back(first, last);
    }
    out.push_back(std::move(entry));
  }
  if (out.empty()) json_fields::Fail("the index has no programs");
  return out;
}

// The first thing in which a program is of another model.
std::string DifferenceOf(const ExportedProgram& a, const ExportedProgram& b) {
  const auto same_module = [](const ExportedModule& x, const ExportedModule& y) {
    return x.path == y.path && x.kind == y.kind;
  };
  if (!std::ranges::equal(a.modules, b.modules, same_module)) return "its modules differ";
  const auto is_own = [](const ProgramTensor& tensor) { return tensor.kind != ProgramTensor::Kind::kConstant; };
  const auto same_tensor = [](const ProgramTensor& x, const ProgramTensor& y) {
    return x.name == y.name && x.kind == y.kind && x.shape == y.shape && x.dtype == y.dtype && x.tied_to == y.tied_to;
  };
  const auto own = [&](const ExportedProgram& program) {
    return std::span(program.tensors.begin(), std::ranges::find_if_not(program.tensors, is_own));
  };
  if (!std::ranges::equal(own(a), own(b), same_tensor)) return "its parameters or buffers differ";
  const auto same_name = [](const auto& x, const auto& y) { return x.name == y.name; };
  if (!std::ranges::equal(a.outputs, b.outputs, same_name)) return "its outputs differ";
  return a.dtype == b.dtype ? "" : "its dtype differs";
}

}  // namespace

Result<ExportedProgram> ReadProgramPath(const std::string& path) {
  const auto read = [](const std::string& file) -> Result<ExportedProgram> {
    const Result<ProgramArchive> archive = ProgramArchive::Open(file);
    if (!archive.ok()) return archive.diagnostics();
    return ReadProgram(archive.value());
  };
  const std::filesystem::path index = std::filesystem::path(path) / kProgramIndex;
  std::error_code ignored;
  if (!std::filesystem::exists(index, ignored)) return read(path);
  const Result<JsonValue> json = ReadJsonFile(index.string(), SmallFile::kProgramIndex);
  if (!json.ok()) return json.diagnostics();
  const auto bad = [&](const std::string& message) {
    Diagnostic d = MakeDiagnostic(Finding::kBadProgram, message);
    d.path = index.string();
    d.help = "export the model again into this directory";
    return d;
  };
  std::vector<IndexEntry> entries;
  try {
    entries = ReadIndexEntries(json.value());
  } catch (const json_fields::Fault& fault) {
    return bad(fault.message);
  }
  std::optional<ExportedProgram> first;
  for (IndexEntry& entry : entries) {
    Result<ExportedProgram> program = read((std::filesystem::path(path) / entry.file).string());
    if (!program.ok()) return program.diagnostics();
    program.value().lengths = std::move(entry.lengths);
    if (!first) {
      first = std::move(program).value();
      continue;
    }
    const std::string difference = DifferenceOf(*first, program.value());
    if (!difference.empty())
      return bad("'" + entry.file + "' does not match the first archive of the index: " + difference);
    first->others.push_back(std::make_shared<const ExportedProgram>(std::move(program).value()));
  }
  return *std::move(first);
}

}  // namespace moonshard

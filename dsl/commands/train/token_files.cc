// Files stay on disk; a row is one read at a computed offset, so data of any size needs no memory. Windows are numbered
// over all files, and a binary search over the files' first windows finds the file of one. A window never crosses a
// file, because tokens of two files do not follow each other in any text.
// Ids are checked where they are read: an id outside of the vocabulary would read another row of the embedding, or on a
// GPU end in an assertion of the device without a place. Data of moderate size is checked as a whole at the start, so
// that a wrong file or a wrong --data-dtype is found before a model is made and not after hours of training.
#include "dsl/commands/train/token_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ATen/Functions.h>

namespace moonshard {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLookedInto = int64_t{1} << 26;  // tokens that are looked into before the first step
constexpr int64_t kBlock = int64_t{1} << 16;       // tokens read at a time for that
constexpr int64_t kByteValues = 256;
constexpr int64_t kIgnored = -100;

// Bytes of a token; 0 for what holds no tokens.
int WidthOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8: return 1;
    case DType::kU16:
    case DType::kI16: return 2;
    case DType::kU32:
    case DType::kI32: return 4;
    case DType::kU64:
    case DType::kI64: return 8;
    default: return 0;
  }
}

bool IsSigned(DType dtype) {
  return dtype == DType::kI8 || dtype == DType::kI16 || dtype == DType::kI32 || dtype == DType::kI64;
}

template <class T>
void Widen(const char* bytes, int64_t count, int64_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = int64_t{token};
  }
}

void Widen(const char* bytes, int width, bool is_signed, int64_t count, int64_t* to) {
  switch (width) {
    case 1: is_signed ? Widen<int8_t>(bytes, count, to) : Widen<uint8_t>(bytes, count, to); return;
    case 2: is_signed ? Widen<int16_t>(bytes, count, to) : Widen<uint16_t>(bytes, count, to); return;
    case 4: is_signed ? Widen<int32_t>(bytes, count, to) : Widen<uint32_t>(bytes, count, to); return;
    default: Widen<int64_t>(bytes, count, to);
  }
}

}  // namespace

Result<TokenFiles::Source> TokenFiles::OpenOne(const std::string& path) const {
  Diagnostics diagnostics;
  std::optional<File> file = File::Open(path).Collect(diagnostics);
  if (!file) return diagnostics;
  const auto bytes = static_cast<int64_t>(file->bytes());
  Source source{std::move(*file), {}, bytes};
  if (bytes == 0) return BadData(path, "the file is empty", "tokens");
  if (path.ends_with(".safetensors")) {
    const std::optional<Checkpoint> tensors = Checkpoint::OpenFile(path).Collect(diagnostics);
    if (!tensors) return diagnostics;
    const StoredTensor* tokens = tensors->Find("tokens");
    if (tokens == nullptr || tokens->shape.size() != 1 || WidthOf(tokens->dtype) == 0) {
      return BadData(path,
                     tokens == nullptr ? "the file has no tensor 'tokens'" : "'tokens' is not a 1-D tensor of integers",
                     "a tensor 'tokens' of one dim and an integer type");
    }
    const auto column = [](const StoredTensor& of) { return Column{of.begin, WidthOf(of.dtype), IsSigned(of.dtype)}; };
    source.column = column(*tokens);
    source.tokens = tokens->shape[0];
    if (const StoredTensor* documents = tensors->Find("document_ids")) {
      if (documents->shape != tokens->shape || WidthOf(documents->dtype) == 0) {
        const std::string count = std::to_string(source.tokens);
        return BadData(path, "'document_ids' is not a 1-D tensor of " + count + " integers, as 'tokens' is",
                       "a tensor 'document_ids' of " + count + " integers: the document of each token");
      }
      source.documents = column(*documents);
    }
  } else if (path.ends_with(".bin")) {
    const int width = source.column.width = options_.raw == "uint32" ? 4 : 2;
    source.tokens = bytes / width;
    if (bytes % width != 0) {
      return BadData(
          path,
          "the size of the file, " + std::to_string(bytes) + " bytes, is not a multiple of the size of " + options_.raw,
          "a multiple of " + std::to_string(width) + " bytes, or another --data-dtype");
    }
  } else if (options_.vocabulary < kByteValues) {
    return BadData(
        path,
        "a text file has one token per byte, with ids up to 255, but the size of the model's vocabulary is " +
            std::to_string(options_.vocabulary),
        "a vocabulary of at least 256, or a file of tokens: .safetensors or .bin");
  }
  if (source.tokens <= options_.sequence) {
    return BadData(path, "the file has " + std::to_string(source.tokens) + " tokens, too few for one row",
                   std::to_string(options_.sequence + 1) + " tokens: --sequence, plus one for the last target");
  }
  if (auto error = HashEnds(source.file, source.hash)) return *error;
  return source;
}

std::optional<Diagnostic> TokenFiles::ReadColumn(const Source& source, const Column& column, int64_t begin,
                                                 int64_t count, int64_t* to) {
  std::vector<char> bytes(static_cast<size_t>(count * column.width));
  const uint64_t offset = column.offset + static_cast<uint64_t>(begin * column.width);
  if (auto error = source.file.Read(offset, bytes.data(), bytes.size())) return error;
  Widen(bytes.data(), column.width, column.is_signed, count, to);
  return std::nullopt;
}

std::optional<Diagnostic> TokenFiles::ReadTokens(const Source& source, int64_t begin, int64_t count,
                                                 int64_t* to) const {
  if (auto error = ReadColumn(source, source.column, begin, count, to)) return error;
  const int64_t* outside =
      std::find_if<const int64_t*>(to, to + count, [&](int64_t id) { return id < 0 || id >= options_.vocabulary; });
  if (outside == to + count) return std::nullopt;
  return BadData(source.file.path(),
                 "token " + std::to_string(begin + (outside - to)) + " of the file is " + std::to_string(*outside) +
                     ", which is outside the vocabulary",
                 "ids from 0 to " + std::to_string(options_.vocabulary - 1));
}

std::optional<Diagnostic> TokenFiles::LookInto(const Source& source) const {
  std::vector<int64_t> block(static_cast<size_t>(kBlock));
  for (int64_t begin = 0; begin < source.tokens; begin += kBlock) {
    if (auto error = ReadTokens(source, begin, std::min(kBlock, source.tokens - begin), block.data())) return error;
  }
  return std::nullopt;
}

Result<TokenFiles> TokenFiles::Open(const std::vector<std::string>& paths, const TokenOptions& options) {
  Diagnostics diagnostics;
  TokenFiles out(options);
  for (const std::string& path : paths) {
    const std::vector<std::string> files = FilesOf(path);
    if (files.empty()) diagnostics.push_back(BadData(path, "the directory has no files", "files of tokens or text"));
    for (const std::string& file : files) {
      std::optional<Source> source = out.OpenOne(file).Collect(diagnostics);
      if (!source) continue;
      source->first_window = out.windows_;
      out.windows_ += (source->tokens - 1) / options.sequence;
      out.sources_.push_back(std::move(*source));
    }
  }
  if (diagnostics.empty() && out.tokens() <= kLookedInto) {
    for (const Source& source : out.sources_) {
      if (auto error = out.LookInto(source)) diagnostics.push_back(std::move(*error));
    }
  }
  if (HasErrors(diagnostics)) return diagnostics;
  return Result<TokenFiles>(std::move(out), std::move(diagnostics));
}

int64_t TokenFiles::tokens() const {
  int64_t sum = 0;
  for (const Source& source : sources_) sum += source.tokens;
  return sum;
}

std::string TokenFiles::Describe() const {
  std::string out;
  for (const Source& source : sources_) {
    out += fs::path(source.file.path()).filename().string() + " " + std::to_string(source.tokens) + " " +
           HashToText(source.hash) + "\n";
  }
  return out;
}

const TokenFiles::Source& TokenFiles::SourceOf(int64_t window) const {
  auto source = std::ranges::upper_bound(sources_, window, {}, &Source::first_window);
  return *--source;
}

std::string TokenFiles::documents_in() const {
  const auto found = std::ranges::find_if(sources_, [](const Source& source) { return source.documents.has_value(); });
  return found == sources_.end() ? "" : found->file.path();
}

void TokenFiles::ReadWindow(int64_t i, int64_t* to) const {
  const Source& source = SourceOf(i);
  const int64_t begin = (i - source.first_window) * options_.sequence;
  if (auto error = ReadTokens(source, begin, options_.sequence + 1, to)) throw PlanError({*error});
}

NamedTensors TokenFiles::Allocate(int64_t rows) const {
  NamedTensors out = {{"ids", at::zeros({rows, options_.sequence}, at::kLong)},
                      {"targets", at::full({rows, options_.sequence}, kIgnored, at::kLong)}};
  if (!documents_in().empty()) out["documents"] = at::zeros({rows, options_.sequence}, at::kLong);
  return out;
}

void TokenFiles::Read(int64_t row, const NamedTensors& to, int64_t at) const {
  std::vector<int64_t> tokens(static_cast<size_t>(options_.sequence + 1));
  ReadWindow(row, tokens.data());
  std::copy(tokens.begin(), tokens.end() - 1, to.at("ids")[at].mutable_data_ptr<int64_t>());
  auto* const targets = to.at("targets")[at].mutable_data_ptr<int64_t>();
  std::copy(tokens.begin() + 1, tokens.end(), targets);
  const Source& source = SourceOf(row);
  if (!source.documents) return;
  std::vector<int64_t> documents(tokens.size());
  const int64_t begin = (row - source.first_window) * options_.sequence;
  if (auto error = ReadColumn(source, *source.documents, begin, options_.sequence + 1, documents.data()))
    throw PlanError({*error});
  std::copy(documents.begin(), documents.end() - 1, to.at("documents")[at].mutable_data_ptr<int64_t>());
  for (size_t i = 0; i + 1 < documents.size(); ++i) {
    if (documents[i] != documents[i + 1]) targets[i] = kIgnored;
  }
}

int64_t TokenFiles::Count(NamedTensors& rows) const {
  at::Tensor& targets = rows.at("targets");
  const int64_t count = targets.ne(kIgnored).sum().item<int64_t>();
  if (count == 0) targets = at::zeros_like(targets);
  return count;
}

}  // namespace moonshard

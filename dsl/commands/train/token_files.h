// TokenFiles: the tokens of one or more files as one list of windows. A window is `sequence` + 1 consecutive tokens of
// one file, from which a row of a batch is made: the inputs, and the targets shifted by one. The next window begins at
// the last token of the window before, so that every token of a file is a target once, except the first token and the
// tokens after the last full window.
// Stage before: rows.h. Stage after: batches.h.
//
//   NAME.safetensors    a 1-D integer tensor `tokens`; optionally `document_ids` of the same size
//   NAME.bin            raw little-endian tokens, uint16 or uint32
//   any other name      plain text: each byte is a token
//
// `document_ids` has a number for each token: tokens with equal numbers are one document. A row then has documents
// (documents.h): attention and positions are each document's own, and the first token of a document is no target. The
// part of a document in a row is a document; a file without `document_ids` is one document.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsl/commands/train/rows.h"
#include "dsl/embed/moonshard.h"

namespace moonshard {

struct TokenOptions {
  int64_t sequence = 0;        // tokens of a row
  int64_t vocabulary = 0;      // number of token ids: ids are from 0 to vocabulary - 1
  std::string raw = "uint16";  // dtype of the tokens in a .bin file
};

class TokenFiles final : public Rows {
 public:
  // `paths`: files and directories (FilesOf). If the files have up to 64 million tokens together, all ids are checked
  // here, else each id is checked when Read reads it. Errors, of all files at once: kFileNotFound, kFileUnreadable,
  // those of safetensors; kBadInput: a file that is empty or too short for a window, no tensor `tokens`,
  // `document_ids` of another size, raw bytes that are not a multiple of the token size, text for a vocabulary below
  // 256, an id outside the vocabulary.
  static Result<TokenFiles> Open(const std::vector<std::string>& paths, const TokenOptions& options);

  int64_t count() const override { return windows_; }
  int64_t tokens() const;
  // The first file with document_ids; "": none.
  std::string documents_in() const;
  // Writes the `sequence` + 1 tokens of window `i` to `to`. Throws PlanError: kFileUnreadable, and kBadInput for an id
  // outside the vocabulary.
  void ReadWindow(int64_t i, int64_t* to) const;

  // `ids` and `targets`, int64 [rows, sequence] each: the inputs, and the ids that follow them. A target of -100 is
  // ignored. If a file has document_ids also `documents`, int64 [rows, sequence], the document of each input.
  NamedTensors Allocate(int64_t rows) const override;
  void Read(int64_t row, const NamedTensors& to, int64_t at) const override;
  int64_t Count(NamedTensors& rows) const override;
  bool fills() const override { return true; }
  bool even() const override { return documents_in().empty(); }
  std::string unit() const override { return "tokens"; }
  int64_t units_per_row() const override { return options_.sequence; }
  std::optional<int64_t> sequence() const override { return options_.sequence; }
  // A line for each file with its name, its number of tokens, and a hash of its length and its first and last 4 MiB.
  std::string Describe() const override;

 private:
  // A list of integers in a file.
  struct Column {
    uint64_t offset = 0;  // of the first one
    int width = 1;        // bytes of one
    bool is_signed = false;
  };
  struct Source {
    File file;
    Column column;  // the tokens
    int64_t tokens = 0;
    std::optional<Column> documents = {};
    int64_t first_window = 0;
    uint64_t hash = 0;
  };

  explicit TokenFiles(TokenOptions options) : options_(std::move(options)) {}
  Result<Source> OpenOne(const std::string& path) const;
  static std::optional<Diagnostic> ReadColumn(const Source& source, const Column& column, int64_t begin, int64_t count,
                                              int64_t* to);
  std::optional<Diagnostic> ReadTokens(const Source& source, int64_t begin, int64_t count, int64_t* to) const;
  const Source& SourceOf(int64_t window) const;
  std::optional<Diagnostic> LookInto(const Source& source) const;

  TokenOptions options_;
  std::vector<Source> sources_;
  int64_t windows_ = 0;
};

}  // namespace moonshard

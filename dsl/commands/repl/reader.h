// LineReader: the source of the lines of a session: a text, a file or pipe, or a terminal (terminal.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace moonshard {

struct ReadResult {
  enum class Status { kLine, kEnd, kInterrupted, kFailed };
  Status status = Status::kEnd;
  std::string line;  // without its line end; kFailed: the reason
};

// Functions that are called while the session waits for input.
struct Idle {
  std::function<bool()> wanted;  // whether to poll
  std::function<bool()> ready;   // polled several times a second: whether there is output
  std::function<void()> show;    // shows the output
};

class LineReader {
 public:
  virtual ~LineReader() = default;
  // Waits for the next line. Only a terminal shows the prompt.
  virtual ReadResult Read(const std::string& prompt) = 0;
};

// The lines of a text.
class TextReader : public LineReader {
 public:
  explicit TextReader(std::string text) : text_(std::move(text)) {}
  ReadResult Read(const std::string& prompt) override;

 private:
  std::string text_;
  size_t at_ = 0;
};

// The lines of a file descriptor, which stays open. Returns kFailed if the descriptor cannot be read, and for a line of
// more than 16 MiB.
class StreamReader : public LineReader {
 public:
  StreamReader(int descriptor, Idle idle, bool show_prompt)
      : descriptor_(descriptor), idle_(std::move(idle)), show_prompt_(show_prompt) {}
  ReadResult Read(const std::string& prompt) override;

 private:
  int descriptor_;
  Idle idle_;
  bool show_prompt_;
  bool ended_ = false;
  std::string buffer_;
};

// Milliseconds between two polls.
inline constexpr int kIdleMs = 150;

}  // namespace moonshard

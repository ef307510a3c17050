// LineReader: where the lines of a session come from: a text, a file or pipe, or a terminal (terminal.h).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace moonshard {

struct ReadResult {
  enum class Status { kLine, kEnd, kInterrupted };
  Status status = Status::kEnd;
  std::string line;  // without its line end
};

// What happens while nobody types.
struct Idle {
  std::function<bool()> wanted;  // whether to ask at all
  std::function<bool()> ready;   // asked several times a second: is there something to show?
  std::function<void()> show;    // shows it
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

// The lines that come through a file descriptor, which stays open.
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

// Milliseconds between two looks at what happens while nobody types.
inline constexpr int kIdleMs = 150;

}  // namespace moonshard

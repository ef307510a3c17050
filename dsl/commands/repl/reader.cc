#include "dsl/commands/repl/reader.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace moonshard {
namespace {

constexpr size_t kLongestLine = size_t{16} << 20;

ReadResult LineOf(std::string text) {
  if (text.ends_with('\r')) text.pop_back();
  return {ReadResult::Status::kLine, std::move(text)};
}

}  // namespace

ReadResult TextReader::Read(const std::string&) {
  if (at_ >= text_.size()) return {};
  const size_t end = std::min(text_.find('\n', at_), text_.size());
  std::string line = text_.substr(at_, end - at_);
  at_ = end + 1;
  return LineOf(std::move(line));
}

// Lines are taken from a buffer of its own and not read through a FILE: poll sees only what the descriptor has, so
// bytes in a buffer of the library would leave poll waiting with a complete line already read.
ReadResult StreamReader::Read(const std::string& prompt) {
  const auto show = [&](std::string_view text) {
    if (!show_prompt_) return;
    [[maybe_unused]] const ssize_t shown = write(STDOUT_FILENO, text.data(), text.size());
  };
  show(prompt);
  while (true) {
    const size_t end = buffer_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return LineOf(std::move(line));
    }
    if (ended_) {
      if (buffer_.empty()) return {};
      return LineOf(std::exchange(buffer_, ""));
    }
    const bool idle = idle_.wanted && idle_.wanted();
    pollfd wait{descriptor_, POLLIN, 0};
    const int ready = poll(&wait, 1, idle ? kIdleMs : -1);
    if (ready == 0) {
      if (!idle_.ready()) continue;
      show("\n");  // below what is typed
      idle_.show();
      show(prompt);
      continue;
    }
    if (ready < 0) {
      if (errno == EINTR) return {ReadResult::Status::kInterrupted, ""};
      return {};
    }
    std::array<char, 4096> bytes;
    const ssize_t got = read(descriptor_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) return {ReadResult::Status::kInterrupted, ""};
    if (got < 0) return {ReadResult::Status::kFailed, std::strerror(errno)};
    if (buffer_.size() > kLongestLine) return {ReadResult::Status::kFailed, "it has a line of more than 16 MiB"};
    if (got == 0) {
      ended_ = true;
    } else {
      buffer_.append(bytes.data(), static_cast<size_t>(got));
    }
  }
}

}  // namespace moonshard

// A line editor over libedit that also waits for files to change. libedit's own reading would block in read(2), so it
// is given a function for the next character, which waits with poll: for a key, for a signal, or for the idle time
// after which watched files are looked at. Output during the wait goes below the typed line, and a key that no keyboard
// sends redraws the line.
// The handler of the signals writes a byte to a pipe that the wait looks at as well. A flag alone would not do: where
// the signal arrives between the test of the flag and the wait, or in another thread (LibTorch starts some), nothing
// ends the wait, and a Ctrl-C would have no effect until the next key.
// A key is read with VMIN 0, so that read never blocks: Linux discards the typed keys at a Ctrl-C, and a poll meanwhile
// can report a key that is gone.
#include "dsl/commands/repl/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#ifdef MOONSHARD_HAS_LIBEDIT

#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>

#include "engine/core/base/visible.h"

namespace moonshard {
namespace {

// Set by the handler, in whichever thread the signal arrives; read by the one terminal that waits.
std::atomic<bool> interrupted = false;
std::atomic<bool> resized = false;
std::atomic<bool> continued = false;
std::atomic<int> wake_end = -1;  // of the pipe; -1: no terminal

void OnSignal(int number) {
  const int error = errno;
  if (number == SIGINT) interrupted = true;
  if (number == SIGWINCH) resized = true;
  if (number == SIGCONT) continued = true;
  // A full pipe ends the wait as well, so the result does not matter.
  if (const int end = wake_end; end >= 0) [[maybe_unused]]
    const ssize_t written = write(end, "", 1);
  errno = error;
}

constexpr wchar_t kRedisplayKey = 0x1e;  // Ctrl-^, which is not used interactively
constexpr std::array kSignals = {SIGINT, SIGWINCH, SIGCONT};

class Terminal : public LineReader {
 public:
  explicit Terminal(TerminalOptions options) : options_(std::move(options)), file_(options_.history) {
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    HistEvent event;
    history(history_, &event, H_SETSIZE, 2000);
    history(history_, &event, H_SETUNIQUE, 1);
    for (const std::string& line : file_.Load()) history(history_, &event, H_ENTER, line.c_str());
    edit_ = el_init("moonshard", stdin, stdout, stderr);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_SIGNAL, 0);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_PROMPT, &Terminal::Prompt);
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_GETCFN, &Terminal::GetCharacter);
    // The wide form: el_set copies the two texts and never gives them back.
    el_wset(edit_, EL_ADDFN, L"moonshard-complete", L"completes the name", &Terminal::Complete);
    el_set(edit_, EL_BIND, "^I", "moonshard-complete", nullptr);
    el_wset(edit_, EL_ADDFN, L"moonshard-redisplay", L"draws the line again", &Terminal::Redisplay);
    el_set(edit_, EL_BIND, "^^", "moonshard-redisplay", nullptr);
    el_set(edit_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_source(edit_, nullptr);
    if (pipe2(wake_.data(), O_CLOEXEC | O_NONBLOCK) != 0) wake_ = {-1, -1};
    wake_end = wake_[1];
    struct sigaction action {};
    action.sa_handler = &OnSignal;
    action.sa_flags = SA_RESTART;  // for writes; poll is not restarted
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &old_[i]);
  }

  ~Terminal() override {
    el_end(edit_);
    history_end(history_);
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
    wake_end = -1;
    for (int end : wake_) {
      if (end >= 0) close(end);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  ReadResult Read(const std::string& prompt) override {
    prompt_ = prompt;
    interrupted = false;
    ReadKeys(edit_);  // before the prompt is shown, so that the terminal echoes nothing that is typed then
    int count = 0;
    const char* text = el_gets(edit_, &count);
    if (text == nullptr) {
      if (!interrupted.exchange(false)) return {};
      el_reset(edit_);
      std::fputs("^C\n", stdout);
      std::fflush(stdout);
      return {ReadResult::Status::kInterrupted, ""};
    }
    std::string line(text);
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) {
      HistEvent event;
      history(history_, &event, H_ENTER, line.c_str());
      file_.Add(line);
    }
    return {ReadResult::Status::kLine, std::move(line)};
  }

 private:
  static Terminal& Self(EditLine* edit) {
    Terminal* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *self;
  }

  // The terminal passes on keys, not lines, and a read without a key returns 0.
  static void ReadKeys(EditLine* edit) {
    el_set(edit, EL_PREP_TERM, 1);
    termios mode{};
    if (tcgetattr(STDIN_FILENO, &mode) != 0) return;
    mode.c_cc[VMIN] = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
  }

  static char* Prompt(EditLine* edit) { return Self(edit).prompt_.data(); }

  static unsigned char Redisplay(EditLine*, int) { return CC_REDISPLAY; }

  // Waits for a key; 1 and the character, 0 at the end, -1 where Ctrl-C ended the wait.
  static int GetCharacter(EditLine* edit, wchar_t* out) {
    Terminal& self = Self(edit);
    std::mbstate_t state{};
    while (true) {
      const bool idle = self.options_.idle.wanted && self.options_.idle.wanted();
      // poll passes over an end that is -1.
      std::array<pollfd, 2> wait = {{{STDIN_FILENO, POLLIN, 0}, {self.wake_[0], POLLIN, 0}}};
      const int ready = poll(wait.data(), wait.size(), idle ? kIdleMs : -1);
      if (ready > 0 && wait[1].revents != 0) {
        std::array<char, 64> bytes;
        while (read(self.wake_[0], bytes.data(), bytes.size()) > 0) {
        }
      }
      if (interrupted) {
        errno = EINTR;
        return -1;
      }
      if (resized.exchange(false)) el_resize(edit);
      if (continued.exchange(false)) {
        ReadKeys(edit);
        *out = kRedisplayKey;
        return 1;
      }
      if (ready < 0) {
        if (errno == EINTR) continue;
        return -1;
      }
      if (ready == 0) {
        if (!self.options_.idle.ready()) continue;
        // Below the typed line, which is redrawn afterwards; flushed before stderr is written.
        std::fputs("\n", stdout);
        std::fflush(stdout);
        self.options_.idle.show();
        *out = kRedisplayKey;
        return 1;
      }
      if (wait[0].revents == 0) continue;
      const bool ended = (wait[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
      char byte = 0;
      const ssize_t got = read(STDIN_FILENO, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got == 0 && !ended) continue;
      if (got <= 0) return static_cast<int>(got);
      const size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // more bytes of one character
      if (used == static_cast<size_t>(-1)) {
        state = {};
        *out = L'?';
      } else if (used == 0) {
        *out = L'\0';
      }
      return 1;
    }
  }

  static unsigned char Complete(EditLine* edit, int) {
    Terminal& self = Self(edit);
    const LineInfo* info = el_line(edit);
    const std::string line(info->buffer, info->lastchar);
    const auto cursor = static_cast<size_t>(info->cursor - info->buffer);
    const Completion found = self.options_.complete(line, cursor);
    if (found.candidates.empty()) return CC_ERROR;
    const std::string word = line.substr(found.begin, cursor - found.begin);
    std::string common = CommonBeginning(found.candidates);
    if (found.candidates.size() == 1) common += found.suffix;
    if (common.size() > word.size()) {
      if (!word.empty()) el_deletestr(edit, static_cast<int>(word.size()));
      el_insertstr(edit, common.c_str());
      return CC_REFRESH;
    }
    if (found.candidates.size() == 1) return CC_NORM;
    List(found.candidates, word);
    return CC_REDISPLAY;
  }

  // The candidates in columns below the line, each from its last component on.
  static void List(const std::vector<std::string>& candidates, const std::string& word) {
    const size_t parent = word.find_last_of(".:/");
    const size_t skip = parent == std::string::npos || parent == 0 ? 0 : parent + 1;
    std::vector<std::string> texts;
    for (const std::string& candidate : candidates) texts.push_back(Visible(candidate.substr(skip)));
    size_t widest = 0;
    for (const std::string& text : texts) widest = std::max(widest, text.size());
    winsize size{};
    const size_t columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
    const size_t per_line = std::max<size_t>(1, columns / (widest + 2));
    const size_t lines = (texts.size() + per_line - 1) / per_line;
    std::string out = "\n";
    for (size_t l = 0; l < lines; ++l) {
      for (size_t i = l; i < texts.size(); i += lines) {
        out += texts[i] + std::string(i + lines < texts.size() ? widest + 2 - texts[i].size() : 0, ' ');
      }
      out += "\n";
    }
    std::fputs(out.c_str(), stdout);
    std::fflush(stdout);
  }

  TerminalOptions options_;
  HistoryFile file_;
  std::string prompt_;
  History* history_ = nullptr;
  EditLine* edit_ = nullptr;
  std::array<int, 2> wake_ = {-1, -1};  // the pipe: its read end, its write end
  std::array<struct sigaction, kSignals.size()> old_ = {};
};

}  // namespace

std::unique_ptr<LineReader> MakeTerminal(TerminalOptions options) {
  const char* kind = std::getenv("TERM");
  const bool dumb = kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb";
  if (dumb || isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) return nullptr;
  return std::make_unique<Terminal>(std::move(options));
}

}  // namespace moonshard

#else

namespace moonshard {

std::unique_ptr<LineReader> MakeTerminal(TerminalOptions) { return nullptr; }

}  // namespace moonshard

#endif

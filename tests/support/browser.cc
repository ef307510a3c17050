#include "tests/support/browser.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "engine/core/base/text.h"
#include "tests/support/process.h"

namespace moonshard::test {
namespace {

constexpr int kTimeoutMs = 60000;
constexpr int kCommands = 3;  // where Chromium reads and writes its messages
constexpr int kReplies = 4;

double BrowserNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int KeyCode(const std::string& key) {
  static const std::map<std::string, int> codes = {
      {"Enter", 13}, {"Escape", 27},    {" ", 32},       {"PageUp", 33},     {"PageDown", 34},  {"End", 35},
      {"Home", 36},  {"ArrowLeft", 37}, {"ArrowUp", 38}, {"ArrowRight", 39}, {"ArrowDown", 40}, {"Tab", 9}};
  const auto found = codes.find(key);
  return found == codes.end() ? key.front() : found->second;
}

std::string Decoded(const std::string& base64) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : base64) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<uint32_t>(c - 'a' + 26);
    else if (c >= '0' && c <= '9')
      value = static_cast<uint32_t>(c - '0' + 52);
    else if (c == '+')
      value = 62;
    else if (c == '/')
      value = 63;
    else
      break;
    bits = bits << 6 | value;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xff);
    }
  }
  return out;
}

}  // namespace

std::optional<std::string> Browser::Find() {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : Split(path == nullptr ? "" : path, ':')) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}) {
      const std::string program = folder + "/" + name;
      if (access(program.c_str(), X_OK) == 0) return program;
    }
  }
  return std::nullopt;
}

Browser::Browser(const std::string& program, const std::string& folder) {
  std::array<int, 2> commands = {};
  std::array<int, 2> replies = {};
  if (pipe2(commands.data(), O_CLOEXEC) != 0 || pipe2(replies.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("no pipe");
  }
  std::vector<std::string> words = {program,
                                    "--headless=new",
                                    "--no-sandbox",
                                    "--disable-gpu",
                                    "--disable-dev-shm-usage",
                                    "--no-first-run",
                                    "--disable-extensions",
                                    "--disable-background-networking",
                                    "--hide-scrollbars",
                                    "--remote-debugging-pipe",
                                    "--user-data-dir=" + folder + "/profile",
                                    "about:blank"};
  std::vector<std::string> environment = ProcessEnvironment({"TMPDIR=.", "HOME=" + folder});
  const std::vector<char*> argv = ExecPointers(words);
  const std::vector<char*> envp = ExecPointers(environment);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    EndWithParent(parent);
    setpgid(0, 0);
    // Its sockets are named below TMPDIR, and such a name has at most 107 characters: the working directory is the
    // folder.
    if (chdir(folder.c_str()) != 0) _exit(127);
    // Above the two places first: a pipe's end may stand in the other's place.
    const int in = fcntl(commands[0], F_DUPFD, 10);
    const int out = fcntl(replies[1], F_DUPFD, 10);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    dup2(in, kCommands);
    dup2(out, kReplies);
    execve(program.c_str(), argv.data(), envp.data());
    _exit(127);
  }
  close(commands[0]);
  close(replies[1]);
  to_ = commands[1];
  from_ = replies[0];
  std::signal(SIGPIPE, SIG_IGN);
  const JsonValue target = Call("Target.createTarget", {{"url", "about:blank"}});
  const JsonValue session = Call("Target.attachToTarget", {{"targetId", *target.Find("targetId")}, {"flatten", true}});
  session_ = session.Find("sessionId")->AsString();
  for (const char* domain : {"Page", "Runtime", "Network", "Log"}) Call(std::string(domain) + ".enable");
}

Browser::~Browser() {
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

JsonValue Browser::Next() {
  size_t end = buffer_.find('\0');
  while (end == std::string::npos) {
    pollfd ready = {from_, POLLIN, 0};
    if (poll(&ready, 1, kTimeoutMs) <= 0) throw std::runtime_error("Chromium does not answer");
    std::array<char, 65536> bytes = {};
    const ssize_t got = read(from_, bytes.data(), bytes.size());
    if (got <= 0) throw std::runtime_error("Chromium has ended");
    const size_t before = buffer_.size();
    buffer_.append(bytes.data(), static_cast<size_t>(got));
    end = buffer_.find('\0', before);
  }
  const std::string text = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return ParseJson(text, "chromium").ValueOrThrow();
}

void Browser::Note(const JsonValue& message) {
  const JsonValue* method = message.Find("method");
  const JsonValue* params = message.Find("params");
  if (method == nullptr || params == nullptr) return;
  if (method->AsString() == "Page.loadEventFired") loaded_ = true;
  if (method->AsString() == "Network.requestWillBeSent") {
    requests_.push_back(params->Find("request")->Find("url")->AsString());
  }
  if (method->AsString() == "Runtime.exceptionThrown" || method->AsString() == "Log.entryAdded") {
    errors_.push_back(WriteJson(*params, 0));
  }
}

JsonValue Browser::Call(const std::string& method, JsonValue::Object params) {
  JsonValue::Object message = {{"id", ++calls_}, {"method", method}, {"params", std::move(params)}};
  if (!session_.empty()) message["sessionId"] = session_;
  const std::string text = WriteJson(message, 0) + '\0';
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = write(to_, text.data() + done, text.size() - done);
    if (put <= 0) throw std::runtime_error("Chromium has ended");
    done += static_cast<size_t>(put);
  }
  while (true) {
    JsonValue reply = Next();
    const JsonValue* id = reply.Find("id");
    if (id == nullptr || id->AsInt() != calls_) {
      Note(reply);
      continue;
    }
    if (const JsonValue* error = reply.Find("error")) throw std::runtime_error(method + ": " + WriteJson(*error, 0));
    return *reply.Find("result");
  }
}

void Browser::Show(const View& view) {
  Call("Emulation.setDeviceMetricsOverride",
       {{"width", view.width}, {"height", view.height}, {"deviceScaleFactor", 1}, {"mobile", view.width < 600}});
  JsonValue::Array features;
  features.emplace_back(JsonValue::Object{{"name", "prefers-color-scheme"}, {"value", view.dark ? "dark" : "light"}});
  Call("Emulation.setEmulatedMedia", {{"media", view.print ? "print" : "screen"}, {"features", std::move(features)}});
}

void Browser::Open(const std::string& file, const View& view) {
  Show(view);
  requests_.clear();
  errors_.clear();
  loaded_ = false;
  const double begin = BrowserNow();
  Call("Page.navigate", {{"url", "file://" + std::filesystem::absolute(file).string()}});
  while (!loaded_) Note(Next());
  seconds_to_load_ = BrowserNow() - begin;
}

JsonValue Browser::Evaluate(const std::string& expression) {
  const JsonValue done =
      Call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
  if (const JsonValue* thrown = done.Find("exceptionDetails")) {
    FAIL(expression << "\nthrew " << WriteJson(*thrown, 1));
  }
  const JsonValue* value = done.Find("result")->Find("value");
  return value == nullptr ? JsonValue() : *value;
}

void Browser::Key(const std::string& key) {
  for (const char* type : {"keyDown", "keyUp"}) {
    JsonValue::Object params = {{"type", type}, {"key", key}, {"windowsVirtualKeyCode", KeyCode(key)}};
    if (key.size() == 1 && type == std::string("keyDown")) params["text"] = key;
    Call("Input.dispatchKeyEvent", std::move(params));
  }
}

void Browser::Type(const std::string& text) { Call("Input.insertText", {{"text", text}}); }

void Browser::SavePicture(const std::string& file) {
  const JsonValue picture = Call("Page.captureScreenshot", {{"format", "png"}, {"captureBeyondViewport", true}});
  std::ofstream(file, std::ios::binary) << Decoded(picture.Find("data")->AsString());
}

}  // namespace moonshard::test

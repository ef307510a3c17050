// A headless Chromium that a test drives through the DevTools protocol, over a pipe: no port, no other program.
//
//   Browser browser(*Browser::Find(), scratch.path());
//   browser.Open(page, {.width = 400, .dark = true});
//   browser.Key("ArrowDown");
//   CHECK(browser.Evaluate("document.activeElement.textContent").AsString() == "model");
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/core/base/json.h"

namespace moonshard::test {

struct View {
  int width = 1280;
  int height = 900;
  bool dark = false;   // what the system prefers
  bool print = false;  // as on paper
};

class Browser {
 public:
  // The program, from the PATH; nothing where there is none.
  static std::optional<std::string> Find();

  // `directory` is for its profile and for all that it would leave in the system's directory for temporary files.
  // Throws std::runtime_error where it does not start or does not answer.
  Browser(const std::string& program, const std::string& folder);
  ~Browser();
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Loads a file and waits until it has run. `seconds_to_load` is how long that took.
  void Open(const std::string& file, const View& view = {});
  double seconds_to_load() const { return seconds_to_load_; }
  // The same page in another view.
  void Show(const View& view);
  // The value of a JavaScript expression; fails the test with what was thrown.
  JsonValue Evaluate(const std::string& expression);
  // Presses a key where the focus is: "ArrowDown", "Enter", "Escape", "/", "a".
  void Key(const std::string& key);
  void Type(const std::string& text);
  // Writes a picture of the whole page.
  void SavePicture(const std::string& file);

  // What the page asked for and what went wrong in it, since Open.
  const std::vector<std::string>& requests() const { return requests_; }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  JsonValue Call(const std::string& method, JsonValue::Object params = {});
  JsonValue Next();  // the next message
  void Note(const JsonValue& message);

  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  int64_t calls_ = 0;
  bool loaded_ = false;
  double seconds_to_load_ = 0;
  std::string session_;
  std::string buffer_;
  std::vector<std::string> requests_;
  std::vector<std::string> errors_;
};

}  // namespace moonshard::test

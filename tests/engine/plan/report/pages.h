// Reports in a headless Chromium, for the tests of the page.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "engine/plan/report/report.h"
#include "tests/support/browser.h"
#include "tests/support/process.h"
#include "tests/support/skip.h"

namespace moonshard::test {

// A browser and the pages it shows; empty where there is no browser.
class Pages {
 public:
  Pages() {
    const std::optional<std::string> program = Browser::Find();
    if (program) browser_ = std::make_unique<Browser>(*program, scratch_.path());
    if (!program) Skip("no Chromium in the PATH");
  }
  explicit operator bool() const { return browser_ != nullptr; }
  Browser& Open(const CompiledPlan& plan, const View& view = {}) {
    return OpenPage(ReportHtml(plan, {"a <model> & \"quotes\"", 0, std::nullopt}), view);
  }
  Browser& OpenPage(std::string page, const View& view = {}) {
    page_ = std::move(page);
    browser_->Open(scratch_.Write("page.html", page_), view);
    return *browser_;
  }
  size_t bytes() const { return page_.size(); }

 private:
  ScratchFolder scratch_;
  std::unique_ptr<Browser> browser_;
  std::string page_;
};

inline void KeepPicture(Browser& browser, const std::string& name) {
  const char* folder = std::getenv("MOONSHARD_PICTURES");
  if (folder != nullptr) browser.SavePicture(std::string(folder) + "/" + name + ".png");
}

inline std::string Focused(Browser& browser) {
  return browser.Evaluate("(document.activeElement.querySelector('.label') || document.activeElement).textContent")
      .AsString();
}

inline int64_t RowCount(Browser& browser) {
  return browser.Evaluate("[...document.querySelectorAll('[role=treeitem]')].filter((e) => e.checkVisibility()).length")
      .AsInt();
}

}  // namespace moonshard::test

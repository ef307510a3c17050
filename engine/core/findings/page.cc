#include "engine/core/findings/page.h"

#include <algorithm>
#include <utility>

#include "engine/core/base/text.h"

namespace moonshard {
namespace {

constexpr std::string_view kFence = "```";

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of('\n');
  const size_t end = text.find_last_not_of('\n');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The names of findings before 0.1, which still find their pages.
constexpr std::pair<std::string_view, std::string_view> kRenamed[] = {
    {"large-whole", "large-replicated"},        {"mostly-whole", "mostly-replicated"},
    {"no-such-move", "no-such-redistribution"}, {"norm-not-told", "norm-layout-differs"},
    {"pieces-not-made", "shards-not-made"},     {"pieces-not-taken", "shards-not-taken"}};

// "# MS0202 unmatched-rule: a rule that matches nothing".
void ReadTitle(std::string_view line, FindingPage& page) {
  line.remove_prefix(std::min(line.size(), line.find_first_not_of("# ")));
  const size_t space = std::min(line.find(' '), line.size());
  const size_t colon = std::min(line.find(": "), line.size());
  page.id = line.substr(0, space);
  if (space < colon) page.name = line.substr(space + 1, colon - space - 1);
  if (colon < line.size()) page.title = line.substr(colon + 2);
}

}  // namespace

std::string FindingPage::Section(std::string_view heading) const {
  const auto found = std::ranges::find(sections, heading, &PageSection::heading);
  return found == sections.end() ? "" : found->text;
}

std::vector<PageBlock> FindingPage::Blocks() const {
  std::vector<PageBlock> out;
  bool open = false;
  for (const std::string& line : Split(markdown, '\n')) {
    if (line.starts_with(kFence)) {
      open = !open;
      if (!open) continue;
      PageBlock block;
      const std::vector<std::string> words = Split(line.substr(kFence.size()), ' ');
      block.language = words.front();
      block.words.assign(words.begin() + 1, words.end());
      out.push_back(std::move(block));
    } else if (open) {
      out.back().text += line + "\n";
    }
  }
  return out;
}

FindingPage ReadPage(std::string_view markdown) {
  FindingPage page;
  page.markdown = markdown;
  page.sections.emplace_back();
  bool open = false;
  bool titled = false;
  for (const std::string& line : Split(markdown, '\n')) {
    if (line.starts_with(kFence)) open = !open;
    if (!open && !titled && line.starts_with("# ")) {
      ReadTitle(line, page);
      titled = true;
    } else if (!open && line.starts_with("## ")) {
      page.sections.push_back({line.substr(3), ""});
    } else {
      page.sections.back().text += line + "\n";
    }
  }
  for (PageSection& section : page.sections) section.text = Trimmed(section.text);
  return page;
}

std::vector<FindingPage> AllPages() {
  std::vector<FindingPage> out;
  for (const EmbeddedPage& page : EmbeddedPages()) out.push_back(ReadPage(page.text));
  std::ranges::sort(out, {}, &FindingPage::id);
  return out;
}

const FindingPage* FindPage(const std::vector<FindingPage>& pages, std::string_view wanted) {
  std::string lower = Lower(wanted);
  for (const auto& [old, name] : kRenamed) {
    if (lower == old) lower = name;
  }
  const auto found = std::ranges::find_if(
      pages, [&](const FindingPage& page) { return Lower(page.id) == lower || Lower(page.name) == lower; });
  return found == pages.end() ? nullptr : &*found;
}

}  // namespace moonshard

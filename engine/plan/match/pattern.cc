#include "engine/plan/match/pattern.h"

#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

namespace moonshard {
namespace {

// Translation: text -> tree -> RE2
//
// A glob is parsed into a small tree and written as one RE2 expression. RE2, because a plan is untrusted text: its
// matching time is linear in the path whatever the expression, where a backtracking matcher takes exponential time on
// nested stars. There is a tree instead of a direct rewriting of the text for three reasons: the same tree is written
// once more for each brace alternative (to find those that match nothing); what `*` and `**` become depends on their
// neighbours; and numbers in the tree decide whether a pattern can tell paths of one class apart.
//
// What the wildcards become:
//   *    a whole component: [^.]+     part of one: [^.]*     (a component is never empty, a part of one may be)
//   **   with the dot behind it: (?:[^.]+\.)*     at the end, with the dot before it: (?:\.[^.]+)*
// `**` must absorb one of its dots, because with no components in between "a.**.b" has to match "a.b".
struct Node;
using Sequence = std::vector<Node>;

struct Node {
  enum class Kind { kLiteral, kDot, kStar, kComponents, kOne, kClass, kChoice };
  Kind kind = Kind::kLiteral;
  std::string text;                // of a literal character, a class or a range of numbers, as RE2 writes it
  std::vector<Sequence> choices;   // of a choice; of a range none, its names are the numbers
  std::vector<std::string> names;  // the choices as the user wrote them

  bool is_range() const { return kind == Kind::kChoice && choices.empty(); }
};

// Thrown inside this file only: parsing is recursive, and the first error ends it.
struct ParseError {
  std::string message;
  size_t position;
};

// A shorter range is an alternation of its numbers.
constexpr int64_t kShortRange = 10;

// Of numbers with as many digits. 127 to 4096 is 127 to 999 and 1000 to 4096, and 127 to 999 is
//
//   1(?:2[7-9]|[3-9][0-9])|[2-9][0-9]{2}
std::string SameLength(std::string_view first, std::string_view last) {
  if (first.empty()) return "";
  const std::string_view low = first.substr(1);
  const std::string_view high = last.substr(1);
  if (first[0] == last[0]) return first[0] + (low.empty() ? "" : "(?:" + SameLength(low, high) + ")");
  const std::string zeros(low.size(), '0');
  const std::string nines(low.size(), '9');
  const char begin = static_cast<char>(low == zeros ? first[0] : first[0] + 1);
  const char end = static_cast<char>(high == nines ? last[0] : last[0] - 1);
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : "|") + part; };
  if (low != zeros) add(first[0] + ("(?:" + SameLength(low, nines) + ")"));
  if (begin <= end) {
    std::string part = {'[', begin, '-', end, ']'};
    for (size_t i = 0; i < low.size(); ++i) part += "[0-9]";
    add(part);
  }
  if (high != nines) add(last[0] + ("(?:" + SameLength(zeros, high) + ")"));
  return out;
}

// The numbers from `first` to `last`, in about as many states of an automaton as they have digits: an alternation of 61
// numbers in each of some patterns makes most of what they cost.
std::string NumbersBetween(const std::string& first, const std::string& last) {
  std::string out;
  for (size_t digits = first.size(); digits <= last.size(); ++digits) {
    const std::string from = digits == first.size() ? first : "1" + std::string(digits - 1, '0');
    const std::string to = digits == last.size() ? last : std::string(digits, '9');
    out += (out.empty() ? "" : "|") + SameLength(from, to);
  }
  return out;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Sequence ParseAll() {
    Sequence out = ParseSequence(false);
    if (position_ < text_.size()) Fail(std::string("'") + text_[position_] + "' without its opening brace");
    return out;
  }

 private:
  [[noreturn]] void Fail(std::string message) const { throw ParseError{std::move(message), position_}; }
  bool AtEnd() const { return position_ >= text_.size(); }

  // Up to the end, or inside braces up to ',' or '}'.
  Sequence ParseSequence(bool in_braces) {
    Sequence out;
    while (!AtEnd()) {
      const char c = text_[position_];
      if (c == '}' || (in_braces && c == ',')) break;
      if (c == '*') {
        Node star = ParseStar();
        const size_t size = out.size();
        if (star.kind == Node::Kind::kComponents && size > 1 && out[size - 1].kind == Node::Kind::kDot &&
            out[size - 2].kind == Node::Kind::kComponents) {
          out.pop_back();  // "**.**" is "**", and one automaton state less for each
        } else {
          out.push_back(std::move(star));
        }
      } else if (c == '?') {
        ++position_;
        out.push_back({Node::Kind::kOne, "[^.]", {}, {}});
      } else if (c == '[') {
        out.push_back(ParseClass());
      } else if (c == '{') {
        out.push_back(ParseChoice());
      } else if (c == '.') {
        ++position_;
        out.push_back({Node::Kind::kDot, "\\.", {}, {}});
      } else {
        ++position_;
        out.push_back({Node::Kind::kLiteral, RE2::QuoteMeta(std::string(1, c)), {}, {}});
      }
    }
    return out;
  }

  // `starts` and `ends` look at the text and not at the tree, because a star may be the first thing in braces:
  // "{**.a,b}" is allowed where the braces themselves begin a component. What the text cannot tell is checked on the
  // tree (CheckStars).
  Node ParseStar() {
    const size_t begin = position_;
    while (!AtEnd() && text_[position_] == '*') ++position_;
    const size_t stars = position_ - begin;
    if (stars == 1) return {Node::Kind::kStar, "", {}, {}};
    const bool starts = begin == 0 || text_[begin - 1] == '.' || text_[begin - 1] == '{' || text_[begin - 1] == ',';
    const bool ends = AtEnd() || text_[position_] == '.' || text_[position_] == '}' || text_[position_] == ',';
    if (stars > 2 || !starts || !ends) {
      position_ = begin;
      Fail("'**' matches full components and must be alone between dots");
    }
    return {Node::Kind::kComponents, "", {}, {}};
  }

  // Copied to RE2 nearly as it is, but a class may not contain the dot, in a range neither ("[+-9]" spans it): a
  // component would otherwise reach into the next one.
  Node ParseClass() {
    const size_t begin = position_++;
    std::string out = "[";
    if (!AtEnd() && (text_[position_] == '!' || text_[position_] == '^')) {
      out += "^.";  // a negated class must not match the dot between components
      ++position_;
    }
    const size_t first = position_;
    for (; !AtEnd() && (text_[position_] != ']' || position_ == first); ++position_) {
      const char c = text_[position_];
      const bool spans_dot = c == '-' && position_ > first && text_[position_ - 1] < '.' &&
                             position_ + 1 < text_.size() && text_[position_ + 1] > '.' && text_[position_ + 1] != ']';
      if (c == '.' && text_.find(']', position_) == std::string_view::npos) break;  // what is missing is the bracket
      if (c == '.' || spans_dot) Fail("a character class cannot contain the dot that separates components");
      if (c == '-' && position_ > first && position_ + 1 < text_.size() && text_[position_ + 1] != ']') {
        out += '-';
      } else {
        if (c == '\\' || c == ']' || c == '[' || c == '^' || c == '-') out += '\\';
        out += c;
      }
    }
    if (AtEnd() || text_[position_] != ']') {
      position_ = begin;
      Fail("'[' without its ']'");
    }
    ++position_;
    return {Node::Kind::kClass, out + "]", {}, {}};
  }

  Node ParseChoice() {
    if (++depth_ > kMostBraceDepth) {
      Fail("braces are nested more than " + std::to_string(kMostBraceDepth) + " deep");
    }
    Node node = ParseOpenChoice();
    --depth_;
    return node;
  }

  Node ParseOpenChoice() {
    const size_t begin = position_++;
    Node node{Node::Kind::kChoice, "", {}, {}};
    const size_t close = text_.find('}', position_);
    const bool nested = text_.find('{', position_) < close;
    if (close != std::string_view::npos && !nested && AddRange(text_.substr(position_, close - position_), node)) {
      position_ = close + 1;
      return node;
    }
    while (true) {
      const size_t start = position_;
      node.choices.push_back(ParseSequence(true));
      if (AtEnd()) {
        position_ = begin;
        Fail("'{' without its '}'");
      }
      node.names.emplace_back(text_.substr(start, position_ - start));
      if (text_[position_++] == '}') return node;
    }
  }

  // "0..15": adds its numbers and returns true; returns false if `body` is not a range.
  bool AddRange(std::string_view body, Node& node) const {
    const size_t dots = body.find("..");
    if (dots == std::string_view::npos) return false;
    int64_t first = 0;
    int64_t last = 0;
    const auto number = [](std::string_view digits, int64_t& value) {
      const char* end = digits.data() + digits.size();
      return !digits.empty() && digits[0] >= '0' && digits[0] <= '9' &&
             std::from_chars(digits.data(), end, value) == std::from_chars_result{end, std::errc()};
    };
    if (!number(body.substr(0, dots), first) || !number(body.substr(dots + 2), last)) {
      Fail("'{" + std::string(body) + "}' is not a range of numbers such as {0..15}");
    }
    if (last < first) Fail("the range {" + std::string(body) + "} counts down");
    if (last - first >= kMostNumbersInRange) {
      Fail("the range {" + std::string(body) + "} has more than " + std::to_string(kMostNumbersInRange) + " numbers");
    }
    for (int64_t i = first; i <= last; ++i) node.names.push_back(std::to_string(i));
    node.text =
        last - first < kShortRange ? Join(node.names, "|") : NumbersBetween(node.names.front(), node.names.back());
    return true;
  }

  std::string_view text_;
  size_t position_ = 0;
  int depth_ = 0;  // of braces
};

bool IsBoundary(const Sequence& sequence, size_t index) {
  return index >= sequence.size() || sequence[index].kind == Node::Kind::kDot;
}

// Writes RE2 text. If `chosen` is a choice of the tree, only its alternative `which` is written for it. Whether a star
// is a whole component depends on what surrounds it, through braces too ("{*,a}.b"), so the surroundings are passed
// down:
//
//   model.*.q_proj       ->   model\.[^.]+\.q_proj
//   model.*_proj         ->   model\.[^.]*_proj
//   model.**.q_proj      ->   model\.(?:[^.]+\.)*q_proj
//   {*,a}.b              ->   (?:[^.]+|a)\.b             the star is a whole component through the braces
//   {*,a}x.b             ->   (?:[^.]*|a)x\.b            and here it is a part of one
class Writer {
 public:
  Writer(const Node* chosen, size_t which) : chosen_(chosen), which_(which) {}

  std::string Write(const Sequence& sequence, bool starts_component, bool ends_component) const {
    std::string out;
    for (size_t i = 0; i < sequence.size(); ++i) {
      const Node& node = sequence[i];
      const bool starts = i == 0 ? starts_component : sequence[i - 1].kind == Node::Kind::kDot;
      const bool ends = i + 1 == sequence.size() ? ends_component : IsBoundary(sequence, i + 1);
      switch (node.kind) {
        case Node::Kind::kStar: out += starts && ends ? "[^.]+" : "[^.]*"; break;
        case Node::Kind::kComponents: i += WriteComponents(sequence, i, out); break;
        case Node::Kind::kChoice: out += WriteChoice(node, starts, ends); break;
        default: out += node.text;
      }
    }
    return out;
  }

 private:
  // "**" absorbs the dot after it, or the one before it if it is last. Returns how many further nodes it used.
  static size_t WriteComponents(const Sequence& sequence, size_t index, std::string& out) {
    if (index + 1 < sequence.size()) {
      out += "(?:[^.]+\\.)*";
      return 1;
    }
    if (index > 0) {
      out.resize(out.size() - 2);  // the "\." before it
      out += "(?:\\.[^.]+)*";
    } else {
      out += "(?:[^.]+(?:\\.[^.]+)*)?";
    }
    return 0;
  }

  std::string WriteChoice(const Node& node, bool starts, bool ends) const {
    if (&node == chosen_)
      return "(?:" + (node.is_range() ? node.names[which_] : Write(node.choices[which_], starts, ends)) + ")";
    if (node.is_range()) return "(?:" + node.text + ")";
    std::string out = "(?:";
    for (const Sequence& choice : node.choices) {
      if (&choice != node.choices.data()) out += "|";
      out += Write(choice, starts, ends);
    }
    return out + ")";
  }

  const Node* chosen_;
  size_t which_;
};

// Whether two paths that differ only in numbers can differ in whether they match: the pattern has a digit of its own,
// or a wildcard of one character, which counts digits. `*` and `**` match any number, whatever its length.
bool DependsOnNumbers(const Sequence& sequence) {
  for (const Node& node : sequence) {
    if (node.kind == Node::Kind::kOne || node.kind == Node::Kind::kClass) return true;
    if (node.kind == Node::Kind::kLiteral && node.text.size() == 1 && node.text[0] >= '0' && node.text[0] <= '9') {
      return true;
    }
    if (node.is_range() || std::ranges::any_of(node.choices, DependsOnNumbers)) return true;
  }
  return false;
}

bool HoldsDots(const Sequence& sequence) {
  return std::ranges::any_of(sequence, [](const Node& node) {
    return node.kind == Node::Kind::kDot || node.kind == Node::Kind::kComponents ||
           std::ranges::any_of(node.choices, HoldsDots);
  });
}

// The last component that depends on numbers, counted from 1. Behind "**", or braces that hold dots, it is not known
// which component of a path one of the pattern is.
size_t DecidingComponents(const Sequence& sequence) {
  size_t component = 1;
  size_t last = 0;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Node& node = sequence[i];
    if (node.kind == Node::Kind::kDot) ++component;
    const bool moves = node.kind == Node::Kind::kComponents || std::ranges::any_of(node.choices, HoldsDots);
    if (moves)
      return DependsOnNumbers(Sequence(sequence.begin() + static_cast<std::ptrdiff_t>(i), sequence.end()))
                 ? Pattern::kAllComponents
                 : last;
    if (DependsOnNumbers({node})) last = component;
  }
  return last;
}

// The first range of numbers that is a full component, in front of which no node moves components, and which
// component it is; null: none.
std::pair<const Node*, size_t> RangeComponent(const Sequence& sequence) {
  size_t component = 1;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Node& node = sequence[i];
    if (node.kind == Node::Kind::kDot) ++component;
    if (node.kind == Node::Kind::kComponents || std::ranges::any_of(node.choices, HoldsDots)) break;
    const bool starts = i == 0 || sequence[i - 1].kind == Node::Kind::kDot;
    if (node.is_range() && starts && IsBoundary(sequence, i + 1)) return {&node, component};
  }
  return {nullptr, 0};
}

void CollectChoices(const Sequence& sequence, std::vector<const Node*>& out) {
  for (const Node& node : sequence) {
    if (node.kind != Node::Kind::kChoice) continue;
    out.push_back(&node);
    for (const Sequence& choice : node.choices) CollectChoices(choice, out);
  }
}

Diagnostic BadPattern(std::string_view text, std::string message, const SourceSpan& source) {
  Diagnostic d = MakeDiagnostic(Finding::kBadPattern, "pattern '" + std::string(text) + "': " + std::move(message));
  d.where = source;
  return d;
}

// "**" absorbs a dot beside it, so within braces too it must be between dots or ends, and must not be all of one
// alternative if there is more beside the braces: "a.{**,b}.c" has no dot within the alternative to absorb. `starts`
// and `ends`: whether the sequence's ends are ends of components; `alone`: whether there is nothing beside it.
void CheckStars(const Sequence& sequence, bool starts, bool ends, bool alone) {
  for (size_t i = 0; i < sequence.size(); ++i) {
    const bool left = i == 0 ? starts : sequence[i - 1].kind == Node::Kind::kDot;
    const bool right = i + 1 == sequence.size() ? ends : sequence[i + 1].kind == Node::Kind::kDot;
    if (sequence[i].kind == Node::Kind::kComponents && (!left || !right || (sequence.size() == 1 && !alone))) {
      throw ParseError{sequence.size() == 1 ? "'**' cannot be a full alternative of braces that have text beside them"
                                            : "'**' matches full components and must be alone between dots",
                       0};
    }
    for (const Sequence& choice : sequence[i].choices) CheckStars(choice, left, right, alone && sequence.size() == 1);
  }
}

// One alternative for each choice of each brace, as a pattern with that choice alone. Their total size is limited: k
// braces of n choices are k * n patterns of the full length.
void AddAlternatives(const Sequence& sequence, Pattern& pattern) {
  std::vector<const Node*> choices;
  CollectChoices(sequence, choices);
  size_t bytes = 0;
  int group = -1;
  const auto [range, component] = RangeComponent(sequence);
  const auto at = range == nullptr ? sequence.end() : sequence.begin() + (range - sequence.data());
  for (const Node* choice : choices) {
    ++group;
    if (choice == range) {
      pattern.range_component = component;
      pattern.range_group = group;
    }
    // Of the range what surrounds it is written once.
    const bool is_top = choice == range;
    const std::string before = is_top ? Writer(nullptr, 0).Write(Sequence(sequence.begin(), at), true, false) : "";
    const std::string behind = is_top ? Writer(nullptr, 0).Write(Sequence(at + 1, sequence.end()), false, true) : "";
    for (size_t i = 0; i < choice->names.size(); ++i) {
      pattern.alternatives.push_back(
          {choice->names[i],
           is_top ? before + "(?:" + choice->names[i] + ")" + behind : Writer(choice, i).Write(sequence, true, true),
           group});
      bytes += pattern.alternatives.back().regex.size();
      if (bytes <= kMostAlternativeBytes) continue;
      throw ParseError{
          "the alternatives of the braces take more than " + std::to_string(kMostAlternativeBytes >> 20) + " MiB", 0};
    }
  }
}

void CheckComponents(std::string_view text) {
  if (text.empty()) return;
  // Two dots are allowed in a number range only.
  int depth = 0;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : (text[i] == '}' ? -1 : 0);
    if (depth <= 0 && text[i] == '.' && text[i + 1] == '.') {
      throw ParseError{"two dots with no component between them", i};
    }
  }
  if (text.front() == '.' || text.back() == '.') throw ParseError{"a dot at the start or at the end", 0};
}

}  // namespace

std::string_view FirstComponents(std::string_view path, size_t count) {
  if (count == Pattern::kAllComponents) return path;
  size_t end = 0;
  for (; count > 0 && end != std::string_view::npos; --count) end = path.find('.', end == 0 ? 0 : end + 1);
  return path.substr(0, end);
}

// The cost of a pattern is bounded before RE2 sees it: its length, the depth of braces (parsing and writing are
// recursive), the numbers of a range, and the total size of its alternatives. What remains, the size of the compiled
// automaton, is bounded by RE2 itself (PatternSet, max_mem).
// A raw expression counts as dependent on numbers, because telling whether it does would mean parsing RE2's syntax. It
// is then matched against every path instead of once per path class: slower, never wrong.
Result<Pattern> TranslatePattern(std::string_view text, PatternSyntax syntax, const SourceSpan& source) {
  if (text.size() > kMostPatternBytes) {
    return BadPattern(
        text.substr(0, 40),
        "it has " + std::to_string(text.size()) + " bytes; the maximum is " + std::to_string(kMostPatternBytes),
        source);
  }
  Pattern pattern;
  if (syntax == PatternSyntax::kNumbered) {
    pattern = TranslateNumbered(text);
  } else if (syntax == PatternSyntax::kRegex) {
    pattern.regex = std::string(text);
    pattern.depends_on_numbers = true;
  } else {
    try {
      CheckComponents(text);
      const Sequence sequence = Parser(text).ParseAll();
      CheckStars(sequence, true, true, true);
      pattern.regex = Writer(nullptr, 0).Write(sequence, true, true);
      pattern.depends_on_numbers = DependsOnNumbers(sequence);
      pattern.deciding_components = DecidingComponents(sequence);
      AddAlternatives(sequence, pattern);
    } catch (const ParseError& error) {
      return BadPattern(text, error.message + " (at character " + std::to_string(error.position + 1) + ")", source);
    }
  }
  // Compiled once for its errors; matching compiles it again, as part of a set.
  RE2::Options quiet;
  quiet.set_log_errors(false);
  const RE2 check(pattern.regex, quiet);
  if (!check.ok()) return BadPattern(text, "RE2: " + check.error(), source);
  return pattern;
}

}  // namespace moonshard

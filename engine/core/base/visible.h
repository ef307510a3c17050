// Visible: a text that the program did not write (a name of a file, a tensor, a module; a message of another program)
// as it may be shown on a terminal, in a log, in a comment of a plan or in a line that a program reads.
//
// What would act on the reader, or hide in front of it, is written as an escape of Lua:
//
//   \n \t                line ends and tabs
//   \x1b                 other control bytes (below 0x20, and 0x7f), and every byte that is not part of valid UTF-8
//   \u{9b} \u{202e}      control characters U+0080 to U+009F; U+2028 and U+2029, which end a line; what sets the
//                        direction of a text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069; Unicode TR
//                        36, 3.1); and all others of Default_Ignorable_Code_Point and of category Cf that are format
//                        characters of no script (UCD: DerivedCoreProperties.txt), which have no width: joiners,
//                        variation selectors, fillers, tags
//   \x3a: \x23#          what the machines of continuous integration take for a command: two colons where a line
//                        begins, also after blanks (GitHub's "::error file=x::"), and ##[, ##vso[, ##teamcity[ anywhere
//
// Everything else is as it was, backslashes too: the text is to be read, not to be turned back.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

// On one line, which may be the beginning of one.
std::string Visible(std::string_view text);
// Line ends stay, and so do tabs; each line end that is not the last byte is followed by `indent`.
std::string VisibleLines(std::string_view text, std::string_view indent = "");

// A text of JSON (RFC 8259) that means the same: what Visible escapes, all of it within strings, as \u202e. For stdout,
// where the reader may be a terminal.
std::string VisibleJson(std::string_view json);

// The first character of `text`, which is not empty.
struct VisibleCharacter {
  size_t bytes = 1;
  char32_t code = 0;     // of valid UTF-8 (RFC 3629: no surrogates, nothing overlong); else the byte
  bool is_utf8 = false;  // false: one byte that is no part of valid UTF-8
  bool shown = false;    // as it is; false: as an escape
};
VisibleCharacter FirstCharacter(std::string_view text);
// Whether `text` begins with "##", letters or none, and "[".
bool BeginsCommand(std::string_view text);

}  // namespace moonshard

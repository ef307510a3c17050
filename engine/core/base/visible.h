// Visible: escapes an untrusted text (the name of a file, a tensor or a module; a message of another program) for a
// terminal, a log, a comment of a plan or a line that another program reads.
//
// Characters that control the reader or are invisible are written as Lua escapes:
//
//   \n \t                line ends and tabs
//   \x1b                 other control bytes (below 0x20, and 0x7f), and every byte that is not part of valid UTF-8
//   \u{9b} \u{202e}      control characters U+0080 to U+009F; U+2028 and U+2029, which end a line; characters that set
//                        the direction of a text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069; Unicode
//                        TR 36, 3.1); and all other characters of Default_Ignorable_Code_Point and of category Cf that
//                        are not format characters of a script (UCD: DerivedCoreProperties.txt), which have no width:
//                        joiners, variation selectors, fillers, tags
//   \x3a: \x23#          commands of continuous integration systems: two colons at the beginning of a line, also after
//                        blanks (GitHub's "::error file=x::"), and ##[, ##vso[, ##teamcity[ anywhere
//
// All other characters are unchanged, including backslashes: the result is for reading and cannot be converted back.
#pragma once

#include <string>
#include <string_view>

namespace moonshard {

// Returns the text as one line, which may be printed at the beginning of a line.
std::string Visible(std::string_view text);
// Returns the text with its line ends and tabs unchanged; `indent` follows each line end that is not the last byte.
std::string VisibleLines(std::string_view text, std::string_view indent = "");

// Returns an equivalent JSON text (RFC 8259) for stdout, which may be a terminal. The characters that Visible escapes,
// which occur only within strings, become JSON escapes such as \u202e.
std::string VisibleJson(std::string_view json);

// The first character of `text`, which is not empty.
struct VisibleCharacter {
  size_t bytes = 1;
  char32_t code = 0;     // code point of valid UTF-8 (RFC 3629: no surrogates, nothing overlong); else the byte
  bool is_utf8 = false;  // false: one byte that is not part of valid UTF-8
  bool shown = false;    // Visible shows it unchanged; false: as an escape
};
VisibleCharacter FirstCharacter(std::string_view text);
// Returns whether `text` begins with "##", any number of letters, and "[".
bool BeginsCommand(std::string_view text);

}  // namespace moonshard

// Visible: escapes an untrusted text (the name of a file, a tensor or a module; a message of another program) for a
// terminal, a log, a comment of a plan or a line that another program reads.
//
// Control characters, invisible characters and the beginnings of CI commands are written as Lua escapes:
//
//   \n \t                line ends and tabs
//   \x1b                 other control bytes (below 0x20, and 0x7f), and every byte that is not part of valid UTF-8
//   \u{9b} \u{202e}      control characters U+0080 to U+009F; U+2028 and U+2029, which end a line; characters that set
//                        the direction of a text (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069; Unicode
//                        TR 36, 3.1); and all other characters without width (joiners, variation selectors, fillers,
//                        tags): those of Default_Ignorable_Code_Point or category Cf, except the format characters of a
//                        script (UCD: DerivedCoreProperties.txt)
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

// Returns an equivalent JSON text (RFC 8259) for stdout, which may be a terminal. Within strings, the characters that
// Visible escapes become JSON escapes such as \u202e; line ends and tabs between values are unchanged.
std::string VisibleJson(std::string_view json);

// One character of a text.
struct VisibleCharacter {
  size_t bytes = 1;
  char32_t code = 0;     // code point of valid UTF-8 (RFC 3629: no surrogates, nothing overlong); else the byte
  bool is_utf8 = false;  // false: one byte that is not part of valid UTF-8
  bool shown = false;    // Visible writes it unchanged; false: Visible writes an escape
};
// Returns the first character of `text`, which must not be empty.
VisibleCharacter FirstCharacter(std::string_view text);
// Returns whether `text` begins with "##", any number of letters, and "[".
bool BeginsCommand(std::string_view text);

}  // namespace moonshard

# Writes OUT, a C++ source with the files of FOLDER as texts.
file(GLOB scripts ${FOLDER}/*.js)
list(SORT scripts)
set(script "")
foreach(name IN LISTS scripts)
  file(READ ${name} text)
  string(APPEND script "${text}")
endforeach()
file(READ ${FOLDER}/page.html html)
file(READ ${FOLDER}/page.css style)
file(WRITE ${OUT} "// Made by engine/plan/report/embed.cmake.
#include \"engine/plan/report/report_data.h\"

namespace moonshard {

std::string_view PageHtml() { return R\"moonshard(${html})moonshard\"; }
std::string_view PageStyle() { return R\"moonshard(${style})moonshard\"; }
std::string_view PageScript() { return R\"moonshard(${script})moonshard\"; }

}  // namespace moonshard
")

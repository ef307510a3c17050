# Writes OUT, a C++ source with the text of every page under ROOT/engine/findings/pages.
file(GLOB files RELATIVE ${ROOT} ${ROOT}/engine/findings/pages/*.md)
list(SORT files)
set(rows "")
foreach(name IN LISTS files)
  file(READ ${ROOT}/${name} text)
  string(APPEND rows "    {\"${name}\", R\"moonshard(${text})moonshard\"},\n")
endforeach()
file(WRITE ${OUT} "// Made by engine/findings/embed.cmake.
#include \"engine/findings/page.h\"

namespace moonshard {
namespace {

constexpr EmbeddedPage kPages[] = {
${rows}};

}  // namespace

std::span<const EmbeddedPage> EmbeddedPages() { return kPages; }

}  // namespace moonshard
")

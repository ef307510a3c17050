# Writes OUT, a C++ source with the text of every Lua file under ROOT/stdlib and ROOT/plans.
file(GLOB files RELATIVE ${ROOT} ${ROOT}/stdlib/*.lua ${ROOT}/plans/*.lua)
list(SORT files)
set(rows "")
foreach(name IN LISTS files)
  file(READ ${ROOT}/${name} text)
  string(APPEND rows "    {\"${name}\", R\"moonshard(${text})moonshard\"},\n")
endforeach()
file(WRITE ${OUT} "// Made by dsl/eval/embed.cmake.
#include \"dsl/eval/files.h\"

namespace moonshard {
namespace {

constexpr EmbeddedFile kFiles[] = {
${rows}};

}  // namespace

std::span<const EmbeddedFile> EmbeddedFiles() { return kFiles; }

}  // namespace moonshard
")

# Writes OUT, a C++ source with FUNCTION, which answers the files under ROOT that match the globs PATTERNS (separated by
# commas, relative to ROOT) as a sorted span of TYPE: path from ROOT, and text. HEADER declares both.
string(REPLACE "," ";" patterns "${PATTERNS}")
list(TRANSFORM patterns PREPEND ${ROOT}/)
file(GLOB files RELATIVE ${ROOT} ${patterns})
list(SORT files)
set(rows "")
foreach(name IN LISTS files)
  file(READ ${ROOT}/${name} text)
  string(APPEND rows "    {\"${name}\", R\"moonshard(${text})moonshard\"},\n")
endforeach()
file(WRITE ${OUT} "// Made by engine/build/embed_texts.cmake.
#include \"${HEADER}\"

namespace moonshard {
namespace {

constexpr ${TYPE} kTexts[] = {
${rows}};

}  // namespace

std::span<const ${TYPE}> ${FUNCTION}() { return kTexts; }

}  // namespace moonshard
")

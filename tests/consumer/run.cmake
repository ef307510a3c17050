# cmake -DBUILD=... -DTORCH=... -DSOURCE=... -DWORK=... -P run.cmake: installs the build folder BUILD into a prefix under
# WORK, moves that prefix elsewhere, builds SOURCE against it, and runs it as two ranks.
cmake_policy(VERSION 3.24)
function(Run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/moved ${WORK}/ranks)
file(MAKE_DIRECTORY ${WORK})
Run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
file(RENAME ${WORK}/prefix ${WORK}/moved)

# An installed header that names one of the source tree would find it only there.
execute_process(COMMAND grep -rnE "#include \"(engine|dsl)/" ${WORK}/moved/include OUTPUT_VARIABLE stray)
if(stray)
  message(FATAL_ERROR "installed headers include files of the source tree:\n${stray}")
endif()

# The installed pages are there, and link to what is there.
file(GLOB_RECURSE pages ${WORK}/moved/share/doc/moonshard/*.md)
if(NOT ${WORK}/moved/share/doc/moonshard/engine/runtime/nn/README.md IN_LIST pages)
  message(FATAL_ERROR "the page for authors of models is not installed")
endif()
foreach(page IN LISTS pages)
  get_filename_component(folder ${page} DIRECTORY)
  execute_process(COMMAND grep -oE "\\]\\([A-Za-z0-9_./-]+[)#]" ${page} OUTPUT_VARIABLE links)
  string(REPLACE "](" ";" links "${links}")
  foreach(link IN LISTS links)
    string(REGEX REPLACE "[)#].*" "" link "${link}")
    if(link AND NOT EXISTS ${folder}/${link})
      message(FATAL_ERROR "${page} links to ${link}, which is not installed")
    endif()
  endforeach()
endforeach()

# The installed program prints for the prefix that it was installed to.
Run(${WORK}/moved/bin/moonshard --version)
string(REGEX MATCH "[0-9]+[.][0-9]+[.][0-9]+" version "${output}")
file(READ ${WORK}/moved/share/moonshard/luarc.json luarc)
string(FIND "${luarc}" "${WORK}/prefix/share/moonshard/library" place)
if(place EQUAL -1)
  message(FATAL_ERROR "share/moonshard/luarc.json is not of the prefix:\n${luarc}")
endif()

# The installed programs find LibTorch where it was at the build; where the loader does not find it they name the variable
# to set, and with it they run.
set(model ${SOURCE}/../parity/llama_gqa)
set(eval eval ${model} --mesh tp=1 --input ${model}/inputs_1.safetensors --output ${WORK}/out.safetensors)
Run(${WORK}/moved/bin/moonshard ${eval})
file(REMOVE_RECURSE ${WORK}/without)
file(COPY ${WORK}/moved/bin DESTINATION ${WORK}/without)
file(RPATH_REMOVE FILE ${WORK}/without/bin/moonshard-run)
execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH --unset=MOONSHARD_TORCH_ROOT
  ${WORK}/without/bin/moonshard ${eval} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 1 OR NOT output MATCHES "does not find lib.*Set MOONSHARD_TORCH_ROOT")
  message(FATAL_ERROR "without LibTorch the program ends with ${status}:\n${output}")
endif()
Run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH MOONSHARD_TORCH_ROOT=${TORCH} ${WORK}/without/bin/moonshard ${eval})

# CMAKE_PREFIX_PATH alone must do: nothing here knows the build's folders.
Run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DMOONSHARD_TORCH_ROOT=${TORCH} -DREADME=${SOURCE}/../../README.md
  -DEMBED_PAGE=${SOURCE}/../../dsl/embed/README.md -DPROGRAMS_PAGE=${SOURCE}/../../engine/models/program/README.md
  -DAUTHORS_PAGE=${SOURCE}/../../engine/runtime/nn/README.md -DMOONSHARD_WANTED=${version}
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
set(ENV{CCACHE_SLOPPINESS} pch_defines,time_macros)  # what ccache needs to keep a file with a precompiled header
Run(${CMAKE_COMMAND} --build ${WORK}/build --parallel 2)
find_program(CLANG NAMES clang++-16 clang++)
if(CLANG)
  set(compiler -DCMAKE_CXX_COMPILER=${CLANG})
endif()
Run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE}/headers -B ${WORK}/headers -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DMOONSHARD_TORCH_ROOT=${TORCH} "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" ${compiler})
Run(${CMAKE_COMMAND} --build ${WORK}/headers --parallel 2)

# RunTwoRanks(PROGRAM words...): a program as two ranks.
function(RunTwoRanks)
  file(REMOVE_RECURSE ${WORK}/store)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env TORCH_FR_BUFFER_SIZE=0 OMP_NUM_THREADS=1 WORLD_SIZE=2 MOONSHARD_STORE=${WORK}/store
      sh -c [[RANK=0 "$@" & first=$!; RANK=1 "$@"; second=$?; wait $first && exit $second]] sh ${ARGN}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 200)
  message("${output}")
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "the ranks ended with ${status}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK}/runs)
RunTwoRanks(${WORK}/build/consumer ${SOURCE}/net.lua ${WORK}/runs)
RunTwoRanks(${WORK}/build/authors ${WORK}/build/authors.lua ${WORK}/authors.safetensors)
file(MAKE_DIRECTORY ${WORK}/any_model)
file(COPY_FILE ${SOURCE}/../parity/programs/reference/llama_gqa.pt2 ${WORK}/any_model/llama.pt2)
file(CREATE_LINK ${SOURCE}/.. ${WORK}/any_model/tests SYMBOLIC)
RunTwoRanks(${CMAKE_COMMAND} -E chdir ${WORK}/any_model ${WORK}/build/any_model)
Run(${WORK}/build/loads_plugin ${WORK}/build/libplugin.so ${SOURCE}/net.lua)
message("${output}")

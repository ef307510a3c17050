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

# CMAKE_PREFIX_PATH alone must do: nothing here knows the build's folders.
Run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${WORK}/build -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${WORK}/moved -DMOONSHARD_TORCH_ROOT=${TORCH} -DREADME=${SOURCE}/../../README.md
  "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}")
Run(${CMAKE_COMMAND} --build ${WORK}/build)

file(REMOVE_RECURSE ${WORK}/store ${WORK}/runs)
set(rank "'${WORK}/build/consumer' '${SOURCE}/net.lua' '${WORK}/runs'")
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_FR_BUFFER_SIZE=0 OMP_NUM_THREADS=1 WORLD_SIZE=2 MOONSHARD_STORE=${WORK}/store
    sh -c "RANK=0 ${rank} & first=$!; RANK=1 ${rank}; second=$?; wait $first && exit $second"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 200)
message("${output}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the ranks ended with ${status}")
endif()

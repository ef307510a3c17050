# Before anything is installed: the programs must be built. They link every library that is installed besides, so nothing
# else can be missing then. What they print about themselves (definitions for editors, the reference, completions, the man
# page) is not taken from the build directory but printed for the prefix; dsl/commands/CMakeLists.txt lists it.
foreach(program moonshard moonshard-run)
  if(program STREQUAL "moonshard-run" AND NOT MOONSHARD_HAS_TORCH)
    continue()
  endif()
  if(NOT EXISTS ${MOONSHARD_BINARY_DIR}/${program})
    message(FATAL_ERROR "moonshard is not built: run cmake --build ${MOONSHARD_BINARY_DIR} --target ${program}, or "
      "./dev build, before cmake --install")
  endif()
endforeach()

# moonshard_install_printed(FILE ARGUMENTS...): what `moonshard ARGUMENTS` prints becomes PREFIX/share/FILE. @SHARE@ in an
# argument stands for PREFIX/share.
function(moonshard_install_printed file)
  set(share ${CMAKE_INSTALL_PREFIX}/share)
  set(target $ENV{DESTDIR}${share}/${file})
  list(TRANSFORM ARGN REPLACE "@SHARE@" "${share}")
  get_filename_component(directory ${target} DIRECTORY)
  file(MAKE_DIRECTORY ${directory})
  execute_process(COMMAND ${MOONSHARD_BINARY_DIR}/moonshard ${ARGN} OUTPUT_FILE ${target} COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "Installing: ${target}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${target})
  set(CMAKE_INSTALL_MANIFEST_FILES ${CMAKE_INSTALL_MANIFEST_FILES} PARENT_SCOPE)
endfunction()

# moonshard_library(NAME SOURCES ... DEPENDS ... [PACKAGES ...] [TORCH])
#
# One library for one folder: `plan` in engine/plan becomes the target moonshard_plan. DEPENDS names the folders it may
# include and link; including any other folder of the project fails when CMake configures, with the line. PACKAGES are
# targets from outside. TORCH folders see LibTorch's headers; no other folder can, because its include path does not
# have them.
find_program(MOONSHARD_CCACHE ccache)
if(MOONSHARD_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${MOONSHARD_CCACHE})
endif()
find_program(MOONSHARD_MOLD mold)
if(MOONSHARD_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_library(moonshard_warnings INTERFACE)
# -Wno-restrict: g++ 12 sees overlaps in std::string that are not there.
target_compile_options(moonshard_warnings INTERFACE -Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers -Wno-restrict)

# Fails where a source of `folder` includes a folder of the project that `allowed` does not list.
function(moonshard_check_includes folder allowed)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*.cc
    ${CMAKE_CURRENT_SOURCE_DIR}/*/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*/*.cc)
  foreach(file IN LISTS files)
    file(STRINGS ${file} lines REGEX "^#include \"(engine|dsl)/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"(engine|dsl)/([a-z_]+)/.*" "\\2" included "${line}")
      if(NOT included STREQUAL folder AND NOT included IN_LIST allowed)
        message(FATAL_ERROR "${file}: ${line}\n  folder '${folder}' may include only: ${allowed}")
      endif()
    endforeach()
  endforeach()
endfunction()

function(moonshard_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;PACKAGES" ${ARGN})
  moonshard_check_includes(${name} "${ARG_DEPENDS}")
  set(target moonshard_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:moonshard_warnings>)
    if(ARG_TORCH)
      target_precompile_headers(${target} REUSE_FROM moonshard_torch_pch)
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:include>)
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} ${scope} moonshard_${dependency})
  endforeach()
  if(ARG_PACKAGES)
    target_link_libraries(${target} ${scope} ${ARG_PACKAGES})
  endif()
  if(ARG_TORCH)
    target_link_libraries(${target} ${scope} moonshard_torch)
  endif()
  set_property(GLOBAL APPEND PROPERTY MOONSHARD_LIBRARIES ${target})
endfunction()

# moonshard_executable(TARGET SOURCES ... DEPENDS ... [PACKAGES ...] [TORCH])
#
# What programs, tests and benches have in common: the folders' libraries, and the precompiled header of those that see
# LibTorch.
function(moonshard_executable target)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;PACKAGES" ${ARGN})
  add_executable(${target} ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE moonshard_warnings ${ARG_PACKAGES})
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} PRIVATE moonshard_${dependency})
  endforeach()
  if(ARG_TORCH)
    # Programs compile with -fPIE unless told; the precompiled header is made with -fPIC.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM moonshard_torch_pch)
    target_link_libraries(${target} PRIVATE moonshard_torch)
  endif()
endfunction()

# moonshard_program(NAME SOURCES ... DEPENDS ... [PACKAGES ...] [TORCH])
#
# A program of the folder it is called in, under the same rules as a library. It appears in the build folder's root, is
# installed to bin, and the release preset's also stands in build/ (build/moonshard).
function(moonshard_program name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;PACKAGES" ${ARGN})
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  moonshard_check_includes(${folder} "${ARG_DEPENDS}")
  moonshard_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
  if(CMAKE_BINARY_DIR STREQUAL "${PROJECT_SOURCE_DIR}/build/release")
    add_custom_command(TARGET ${name} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink release/${name} ${PROJECT_SOURCE_DIR}/build/${name})
  endif()
endfunction()

# The architecture, enforced: layers of libraries, one library a directory, dependencies one way.
#
# moonshard_layer([USES layers...])
#
# Opens the layer of the current directory: engine/runtime is the layer `runtime`. Its libraries may depend on one another
# and on libraries of the layers that USES names.
#
# moonshard_library(NAME [SOURCES ...] [DEPENDS ...] [PACKAGES ...] [TORCH] [UNITY n])
#
# The library moonshard_NAME of the directory NAME in the current one, or of the current directory where there is no such
# subdirectory (a layer of one library). Every .cc file in it is compiled; SOURCES names generated files and objects besides.
# DEPENDS names the libraries that it may include and link: an include of another one, or of another layer than USES allows,
# fails when CMake configures, with the line. PACKAGES are targets from outside, for its .cc files: its headers do not
# include theirs. TORCH libraries see LibTorch's headers; no other library can, because its include path does not have them.
# UNITY: how many sources are compiled as one (default 8; 1: each alone): g++ reads the headers once for all of them, which
# is where the time goes.
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
# __FILE__ is the path in the checkout (engine/plan/plan.cc): what an error names, and the same bytes from every checkout.
target_compile_options(moonshard_warnings INTERFACE -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

option(MOONSHARD_UNITY "Compile several sources of a directory as one" ON)

function(moonshard_layer)
  cmake_parse_arguments(ARG "" "" "USES" ${ARGN})
  get_filename_component(layer ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set_property(GLOBAL PROPERTY MOONSHARD_LAYER_${layer} ${layer} ${ARG_USES})
endfunction()

# Fails where a source in `directory` includes a library of the project other than `name` and those of `allowed`.
function(moonshard_check_includes name directory allowed)
  get_filename_component(layer ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  get_property(layers GLOBAL PROPERTY MOONSHARD_LAYER_${layer})
  file(RELATIVE_PATH own ${PROJECT_SOURCE_DIR} ${directory})
  set(prefixes "${own}/")
  foreach(library IN LISTS allowed)
    get_property(path GLOBAL PROPERTY MOONSHARD_PATH_${library})
    get_property(library_layer GLOBAL PROPERTY MOONSHARD_LAYER_OF_${library})
    if(NOT path)
      message(SEND_ERROR "${own}: DEPENDS names '${library}', which is no library built before it")
    endif()
    if(NOT library_layer IN_LIST layers)
      message(SEND_ERROR "${own}: '${library}' is in layer '${library_layer}'; layer '${layer}' may use: ${layers}")
    endif()
    list(APPEND prefixes "${path}/")
  endforeach()
  list(JOIN prefixes "|" prefixes)
  file(GLOB files CONFIGURE_DEPENDS ${directory}/*.h ${directory}/*.cc ${directory}/*/*.h ${directory}/*/*.cc)
  get_property(within GLOBAL PROPERTY MOONSHARD_DIRECTORIES)  # a library inside of this directory, made before it
  foreach(file IN LISTS files)
    get_filename_component(holder ${file} DIRECTORY)
    if(NOT holder STREQUAL directory AND holder IN_LIST within)
      continue()
    endif()
    file(STRINGS ${file} lines REGEX "^#include \"(engine|dsl)/")
    foreach(line IN LISTS lines)
      if(NOT line MATCHES "^#include \"(${prefixes})")
        message(SEND_ERROR "${file}: ${line}\n  library '${name}' may include only: ${allowed}")
      endif()
    endforeach()
  endforeach()
endfunction()

function(moonshard_library name)
  cmake_parse_arguments(ARG "TORCH" "UNITY" "SOURCES;DEPENDS;PACKAGES" ${ARGN})
  set(directory ${CMAKE_CURRENT_SOURCE_DIR}/${name})
  if(NOT EXISTS ${directory})
    set(directory ${CMAKE_CURRENT_SOURCE_DIR})
  endif()
  moonshard_check_includes(${name} ${directory} "${ARG_DEPENDS}")
  set_property(GLOBAL APPEND PROPERTY MOONSHARD_DIRECTORIES ${directory})
  file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${directory})
  get_filename_component(layer ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set_property(GLOBAL PROPERTY MOONSHARD_PATH_${name} ${path})
  set_property(GLOBAL PROPERTY MOONSHARD_LAYER_OF_${name} ${layer})
  set(target moonshard_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${directory}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main[.]cc$")
  if(sources)
    add_library(${target} STATIC ${sources} ${ARG_SOURCES})
    set(scope PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:moonshard_warnings> ${ARG_PACKAGES})
    moonshard_unity(${target} "${ARG_UNITY}")
    if(ARG_TORCH)
      target_precompile_headers(${target} REUSE_FROM moonshard_torch_pch)
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} ${scope} cxx_std_20)
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${target} ${scope} moonshard_${dependency})
  endforeach()
  if(ARG_TORCH)
    target_link_libraries(${target} ${scope} moonshard_torch)
  endif()
  set_property(GLOBAL APPEND PROPERTY MOONSHARD_LIBRARIES ${target})
endfunction()

function(moonshard_unity target size)
  if(size STREQUAL "")
    set(size 8)
  endif()
  if(MOONSHARD_UNITY AND NOT size EQUAL 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  endif()
endfunction()

# moonshard_executable(TARGET SOURCES ... DEPENDS ... [PACKAGES ...] [TORCH])
#
# What commands, tests and benches have in common: the folders' libraries, and the precompiled header of those that see
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
    # Executables compile with -fPIE unless told; the precompiled header is made with -fPIC.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM moonshard_torch_pch)
    target_link_libraries(${target} PRIVATE moonshard_torch)
  endif()
endfunction()

# moonshard_command(NAME SOURCES ... DEPENDS ... [PACKAGES ...] [TORCH])
#
# A command of the folder it is called in, under the same rules as a library. It appears in the build folder's root, is
# installed to bin, and the release preset's also stands in build/ (build/moonshard).
function(moonshard_command name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPENDS;PACKAGES" ${ARGN})
  moonshard_executable(${name} ${ARGN})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  if("TORCH" IN_LIST ARGN)  # not INSTALL_RPATH_USE_LINK_PATH, which leaves out a LibTorch under build/
    set_target_properties(${name} PROPERTIES INSTALL_RPATH ${MOONSHARD_TORCH_ROOT}/lib)
  endif()
  install(TARGETS ${name} RUNTIME DESTINATION bin)
  if(CMAKE_BINARY_DIR STREQUAL "${PROJECT_SOURCE_DIR}/build/release")
    add_custom_command(TARGET ${name} POST_BUILD
      COMMAND ${CMAKE_COMMAND} -E create_symlink release/${name} ${PROJECT_SOURCE_DIR}/build/${name})
  endif()
endfunction()

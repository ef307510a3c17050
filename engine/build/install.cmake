# What `cmake --install` puts into a prefix, for find_package(moonshard CONFIG):
#   bin/                    the commands (moonshard_command installs them)
#   include/moonshard/      moonshard.h, and what it includes
#   share/doc/moonshard/    README.md and the pages of the folders
#   lib/                    one static library a folder, those that moonshard_embed needs
#   lib/cmake/moonshard/    the package; moonshard::moonshard is the one target to link
include(CMakePackageConfigHelpers)

# moonshard_install_with(TARGET): TARGET and every moonshard library that it links, each once.
function(moonshard_install_with target)
  get_property(done GLOBAL PROPERTY MOONSHARD_INSTALLED)
  if(target IN_LIST done)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY MOONSHARD_INSTALLED ${target})
  string(REPLACE moonshard_ "" name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS ${target} EXPORT moonshard ARCHIVE DESTINATION lib/moonshard)
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  get_property(libraries GLOBAL PROPERTY MOONSHARD_LIBRARIES)
  foreach(link IN LISTS links)
    if(link IN_LIST libraries)
      moonshard_install_with(${link})
    endif()
  endforeach()
endfunction()

if(TARGET moonshard_embed)
  moonshard_install_with(moonshard_embed)
  set(package_folder lib/cmake/moonshard)
  install(EXPORT moonshard NAMESPACE moonshard:: DESTINATION ${package_folder} FILE moonshardTargets.cmake)
  configure_package_config_file(engine/build/moonshardConfig.cmake.in ${CMAKE_BINARY_DIR}/moonshardConfig.cmake
    INSTALL_DESTINATION ${package_folder} NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/moonshardConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/moonshardConfig.cmake ${CMAKE_BINARY_DIR}/moonshardConfigVersion.cmake
    engine/build/torch_target.cmake DESTINATION ${package_folder})
  install(CODE "set(MOONSHARD_SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")\nset(MOONSHARD_UMBRELLA dsl/embed/moonshard.h)")
  install(SCRIPT engine/build/install_headers.cmake)
else()
  message(STATUS "moonshard: without LibTorch only the program is installed")
endif()
install(CODE "set(MOONSHARD_SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")")
install(SCRIPT engine/build/install_pages.cmake)  # after the headers, to which they link

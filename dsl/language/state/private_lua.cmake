# moonshard_private_lua(OBJECT INCLUDE)
#
# A copy of Lua (its C++ build: errors are exceptions, so destructors run) that no host can collide with, in a program or
# in a shared library. OBJECT names a variable for the one object file, INCLUDE one for a directory with
# moonshard_lua_names.h, which makes <lua.hpp> declare the renamed functions.
#
# The archive of the system is taken apart and put together again:
#   - Every symbol that it defines gets the prefix moonshard_, so that a host's own Lua keeps its names.
#   - Debian compiles it for position-independent programs, not for shared libraries: its code reaches data and a few
#     functions relative to itself, which a linker refuses in a shared library while another library could replace the
#     symbol. Hidden symbols cannot be replaced. Visibility is a property of the symbol and the narrowest of all objects
#     counts, so an object that only names the symbols as hidden makes them so in what `ld -r` puts together.
#   - stdin and stderr belong to libc and cannot be hidden: the object reads variables of ours in their place
#     (standard_streams.cc).
#   - Members with libraries that no plan can reach (io, os, package, debug, ...) are left out.
function(moonshard_private_lua object include)
  find_library(MOONSHARD_LUA_ARCHIVE NAMES liblua5.4-c++.a HINTS ${LUA_LIBRARY_DIRS} ${LUA_LIBDIR} REQUIRED)
  find_program(MOONSHARD_LD NAMES ld REQUIRED)
  set(folder ${CMAKE_BINARY_DIR}/private_lua)
  set(made ${folder}/moonshard_lua.o)
  set(stamp ${folder}/archive.txt)
  file(SHA256 ${MOONSHARD_LUA_ARCHIVE} digest)
  file(SHA256 ${CMAKE_CURRENT_FUNCTION_LIST_FILE} recipe)
  set(stamped "")
  if(EXISTS ${stamp} AND EXISTS ${made})
    file(READ ${stamp} stamped)
  endif()
  if(NOT stamped STREQUAL "${digest} ${recipe}")
    file(REMOVE_RECURSE ${folder})
    file(MAKE_DIRECTORY ${folder}/members)
    execute_process(COMMAND ${CMAKE_AR} x ${MOONSHARD_LUA_ARCHIVE} WORKING_DIRECTORY ${folder}/members
      COMMAND_ERROR_IS_FATAL ANY)
    file(GLOB members ${folder}/members/*.o)
    list(FILTER members EXCLUDE REGEX "/l(init|baselib|corolib|dblib|iolib|oadlib|oslib|tablib|utf8lib)[^/]*$")
    execute_process(COMMAND ${CMAKE_NM} -g --defined-only ${members} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[0-9a-f]+ [A-Z] [^\n]+" symbols "${symbols}")
    list(REMOVE_DUPLICATES symbols)
    set(renames "stdin moonshard_stdin\nstdout moonshard_stdout\nstderr moonshard_stderr\n")
    set(defines "// Made by dsl/language/state/private_lua.cmake: the public functions of Lua under the names of our private copy.\n#pragma once\n")
    set(hidden ".section .moonshard_names\n")
    foreach(symbol IN LISTS symbols)
      string(REGEX REPLACE "^[0-9a-f]+ [A-Z] " "" symbol "${symbol}")
      if(symbol MATCHES "^DW[.]")  # shared with every C++ object
        continue()
      endif()
      string(APPEND renames "${symbol} moonshard_${symbol}\n")
      string(APPEND hidden ".hidden moonshard_${symbol}\n.quad moonshard_${symbol}\n")
      if(symbol MATCHES "^lua[A-Za-z_]*$")
        string(APPEND defines "#define ${symbol} moonshard_${symbol}\n")
      endif()
    endforeach()
    foreach(stream stdin stdout stderr)
      string(APPEND hidden ".hidden moonshard_${stream}\n.quad moonshard_${stream}\n")
    endforeach()
    string(APPEND hidden ".section .note.GNU-stack\n")
    file(WRITE ${folder}/renames.txt "${renames}")
    file(WRITE ${folder}/hidden.s "${hidden}")
    file(WRITE ${folder}/include/moonshard_lua_names.h "${defines}")
    foreach(member IN LISTS members)
      execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-syms=${folder}/renames.txt ${member} COMMAND_ERROR_IS_FATAL ANY)
    endforeach()
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -c ${folder}/hidden.s -o ${folder}/hidden.o COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${MOONSHARD_LD} -r -o ${made} ${members} ${folder}/hidden.o COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_OBJCOPY} --remove-section=.moonshard_names --remove-section=.rela.moonshard_names
      ${made} COMMAND_ERROR_IS_FATAL ANY)
    file(WRITE ${stamp} "${digest} ${recipe}")
  endif()
  set(${object} ${made} PARENT_SCOPE)
  set(${include} ${folder}/include PARENT_SCOPE)
endfunction()

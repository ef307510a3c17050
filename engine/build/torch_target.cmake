# moonshard_torch_target(ROOT): the target moonshard_torch, LibTorch as moonshard uses it. The build and the installed
# package both make it here. An imported target of our own over ROOT/include and ROOT/lib: LibTorch's CMake package asks
# for a CUDA toolkit even where only the CPU is wanted.
function(moonshard_torch_target root)
  find_package(Threads REQUIRED)
  set(lib ${root}/lib)
  add_library(moonshard_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(moonshard_torch SYSTEM INTERFACE ${root}/include ${root}/include/torch/csrc/api/include)
  target_compile_definitions(moonshard_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
  # RE2's package asks for it too, and g++ takes the precompiled header only where all sources agree.
  target_compile_options(moonshard_torch INTERFACE -pthread)
  target_link_libraries(moonshard_torch INTERFACE ${lib}/libtorch_cpu.so ${lib}/libc10.so Threads::Threads)
  # libtorch_cpu.so finds what it needs by its own run path, which the linker does not follow.
  target_link_options(moonshard_torch INTERFACE -Wl,--allow-shlib-undefined)
endfunction()

# moonshard_torch_version(ROOT OUT): "2.11.0", or "" where ROOT holds no LibTorch.
function(moonshard_torch_version root out)
  set(numbers "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(numbers STREQUAL "" AND EXISTS ${root}/lib/libtorch_cpu.so AND EXISTS ${root}/include/${header})
      file(STRINGS ${root}/include/${header} numbers REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    endif()
  endforeach()
  string(REGEX MATCHALL "[0-9]+" numbers "${numbers}")
  list(JOIN numbers "." version)
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

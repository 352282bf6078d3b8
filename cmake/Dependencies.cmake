# Everything nibble links, from Debian packages. docs/architecture.md says what each is for.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

# A static library where Debian has the archive: the binary then runs on a machine without the
# packages. Falls back to the shared one.
function(nibble_static_library target archive header)
  find_library(${target}_LIBRARY NAMES lib${archive}.a ${archive} REQUIRED)
  find_path(${target}_INCLUDE NAMES ${header} REQUIRED)
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE ${${target}_LIBRARY})
  target_include_directories(${target} INTERFACE ${${target}_INCLUDE})
endfunction()
nibble_static_library(pcre2 pcre2-8 pcre2.h)
nibble_static_library(utf8proc utf8proc utf8proc.h)
target_compile_definitions(utf8proc INTERFACE UTF8PROC_STATIC)

if(NIBBLE_TESTS)
  find_package(GTest REQUIRED)
  nibble_static_library(rapidcheck rapidcheck rapidcheck.h)
  include(GoogleTest)
  enable_testing()
endif()
if(NIBBLE_BENCH)
  find_package(benchmark REQUIRED)
endif()

# The flags that every target of ours gets.
add_library(nibble_flags INTERFACE)
target_include_directories(nibble_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_compile_options(nibble_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # g++ 12 sees overlapping copies in std::string operator+ where there are none (its bug 105651).
  target_compile_options(nibble_flags INTERFACE -Wno-restrict)
endif()
if(NIBBLE_WERROR)
  target_compile_options(nibble_flags INTERFACE -Werror)
endif()
if(NIBBLE_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # With the checks in between, g++ 12 no longer sees that std::regex sets its members.
    target_compile_options(nibble_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
  target_compile_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=undefined)
  target_link_options(nibble_flags INTERFACE -fsanitize=${NIBBLE_SANITIZE})
  if(NIBBLE_FUZZ)
    target_compile_options(nibble_flags INTERFACE -fsanitize=fuzzer-no-link)
  endif()
endif()
# Bit equality of dequantized weights forbids fusing d*q+m into one rounding.
target_compile_options(nibble_flags INTERFACE -ffp-contract=off)

# nibble_room(NAME SOURCES a.cc ... DEPENDS room ... LIBRARIES lib ... TESTS a_test.cc ...)
# One room: a static library nibble_NAME, and (with NIBBLE_TESTS) one test program test_NAME.
# TESTS are split off from SOURCES so that a release never compiles them.
function(nibble_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPENDS;LIBRARIES;TESTS;TEST_DEPENDS" ${ARGN})
  if(ROOM_SOURCES)
    add_library(nibble_${name} STATIC ${ROOM_SOURCES})
    target_link_libraries(nibble_${name} PUBLIC nibble_flags fmt::fmt)
    target_link_libraries(nibble_${name} PRIVATE ${ROOM_LIBRARIES})
    foreach(other ${ROOM_DEPENDS})
      target_link_libraries(nibble_${name} PUBLIC nibble_${other})
    endforeach()
  endif()
  if(NIBBLE_TESTS AND ROOM_TESTS)
    add_executable(test_${name} ${ROOM_TESTS})
    target_link_libraries(test_${name} PRIVATE nibble_${name} GTest::gtest_main ${ROOM_LIBRARIES}
                          ${ROOM_TEST_DEPENDS})
    target_compile_definitions(test_${name} PRIVATE NIBBLE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    gtest_discover_tests(test_${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
  endif()
endfunction()

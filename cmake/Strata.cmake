# Settings shared by every target, and the two functions that make targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_program(CCACHE ccache)
if(CCACHE)
  # Paths relative to the checkout, so that another checkout of the same sources finds the same objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
endif()
find_package(Threads REQUIRED)

add_library(strata_options INTERFACE)
# -ffp-contract=off: a multiply-add is fused only where the source says std::fma, so all ISAs give the same bits.
target_compile_options(strata_options INTERFACE -Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off)
target_include_directories(strata_options INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
target_link_libraries(strata_options INTERFACE Threads::Threads)
if(STRATA_SANITIZE)
  # Instrumentation makes g++ 12 warn of uninitialized memory inside the standard library; the plain build has -Werror.
  target_compile_options(strata_options INTERFACE -Wno-error)
  # Applies to every target, third-party glue included, so that one runtime is linked everywhere.
  add_compile_options(-fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${STRATA_SANITIZE})
  if(STRATA_SANITIZE MATCHES undefined)
    # Checks of every pointer access: AddressSanitizer sees most of what they see, and they double the build time.
    add_compile_options(-fno-sanitize=null,object-size,vptr,alignment)
  endif()
endif()

# strata_library(NAME SOURCES a.cpp ... [PUBLIC libs...] [PRIVATE libs...])
function(strata_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC strata_options ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
endfunction()

# strata_test(NAME SOURCES a_test.cpp ... LIBS libs... [LABELS ...]): one GoogleTest binary, one ctest entry.
# The time-out is a guard against hangs, never a measurement.
function(strata_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LIBS;LABELS" ${ARGN})
  if(NOT STRATA_WITH_TESTS)
    return()
  endif()
  find_package(GTest REQUIRED)
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} strata_options GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_options(${name} PRIVATE -O1)  # of the test's own sources: half the build time, nothing measured there
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  # What was measured of this machine's drives must not change a result.
  set(environment "STRATA_DRIVE_PROFILES=${CMAKE_BINARY_DIR}/no-drive-profiles.json")
  if(STRATA_SANITIZE STREQUAL thread)
    list(APPEND environment "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" ENVIRONMENT "${environment}")
endfunction()

# strata_python_test(NAME FILES x.py ... [ENVIRONMENT A=b ...] [TIMEOUT s]): pytest on files or folders, one ctest entry.
# Needs the packages of tools/requirements.txt, which are there when torch is. Not in sanitizer builds: the interpreter and the
# libraries it loads are not instrumented.
function(strata_python_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "FILES;ENVIRONMENT" ${ARGN})
  if(NOT STRATA_WITH_TESTS OR NOT STRATA_WITH_TORCH OR STRATA_SANITIZE)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1200)
  endif()
  add_test(NAME ${name} COMMAND ${STRATA_PYTHON} -m pytest -q -p no:cacheprovider ${ARG_FILES})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS python
    ENVIRONMENT "STRATA_DRIVE_PROFILES=${CMAKE_BINARY_DIR}/no-drive-profiles.json;${ARG_ENVIRONMENT}")
endfunction()

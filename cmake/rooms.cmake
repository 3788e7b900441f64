# One target a room, which links the rooms that it uses; tests/rooms_test.py holds the includes to them.

include(GoogleTest)

# ridge_room(<name> SOURCES <file>... [DEPS <target>...]): a static library, or a header-only one without sources.
function(ridge_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC ridge_options ${ARG_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ridge_options ${ARG_DEPS})
  endif()
endfunction()

# ridge_test(<name> LABEL <unit|e2e|gpu|fuzz|soak> SOURCES <file>... [DEPS <target>...] [TIMEOUT <seconds>]):
# every GoogleTest case becomes a ctest entry of its own. Those of e2e run one at a time: they boot processes and wait for them.
function(ridge_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ridge_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    RIDGE_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/golden"
    RIDGE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    RIDGE_BINARY_DIR="${PROJECT_BINARY_DIR}")
  set(serial FALSE)
  if(ARG_LABEL STREQUAL "e2e")
    set(serial TRUE)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${serial})
endfunction()

# ridge_gpu_test(<name> SOURCES <file>... [DEPS <target>...] [TIMEOUT <seconds>]): tests that need a card, labelled gpu. Where
# there is none each is skipped and says so. Sources are .cc or .cu; main() is tests/gpu/gpu_test_main.cc.
function(ridge_gpu_test name)
  cmake_parse_arguments(ARG "NUMERICS" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ridge_options ridge_cuda_options ridge_gpu_test_main ${ARG_DEPS} GTest::gmock GTest::gtest)
  target_compile_definitions(${name} PRIVATE RIDGE_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/golden")
  # Other tests mean little on a card that does not show the facts behind the numerics contract.
  set(fixture FIXTURES_REQUIRED)
  if(ARG_NUMERICS)
    set(fixture FIXTURES_SETUP)
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS gpu TIMEOUT ${ARG_TIMEOUT} RESOURCE_LOCK gpu ${fixture} gpu_numerics)
endfunction()

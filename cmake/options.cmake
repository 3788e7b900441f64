# Compiler options that every target shares.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(ridge_options INTERFACE)
target_compile_options(ridge_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wshadow;-Wnon-virtual-dtor;-Woverloaded-virtual>"
  # The numerics contract: a multiply and an add are fused only where the code says so.
  "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>")
target_include_directories(ridge_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(ridge_options INTERFACE RIDGE_VERSION="${PROJECT_VERSION}")

if(RIDGE_SANITIZE)
  add_compile_options(-fsanitize=${RIDGE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${RIDGE_SANITIZE})
  if(RIDGE_SANITIZE MATCHES thread)
    # GCC warns of every fence that it cannot follow; those in the libraries' headers are not ours to change.
    add_compile_options(-Wno-tsan)
  endif()
endif()

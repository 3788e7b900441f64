# CUDA is optional: without nvcc the build is complete, and simply has no CUDA backend. RIDGE_HAVE_CUDA says which it is.

set(RIDGE_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON, OFF")
# wgmma and setmaxnreg need the "a" of 90a. The PTX serves every later card.
set(RIDGE_CUDA_ARCHITECTURES "80;86;89;90a" CACHE STRING "Compute capabilities to make machine code for")
set(RIDGE_CUDA_PTX "80" CACHE STRING "Compute capability of the PTX that is carried along; empty: none")
option(RIDGE_BOUNDED_SPINS "Kernels that wait for a word or a barrier in vain end with a message: to look for faults" OFF)

# Where the runtime began to give the driver's functions by version (cudaGetDriverEntryPointByVersion).
set(RIDGE_CUDA_MINIMUM 12.5)

set(RIDGE_HAVE_CUDA FALSE)
if(RIDGE_SANITIZE AND RIDGE_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA: left out of a build with sanitizers")
elseif(NOT RIDGE_CUDA STREQUAL "OFF")
  find_program(RIDGE_NVCC nvcc HINTS /usr/local/cuda/bin)
  set(RIDGE_NVCC_VERSION 0)
  if(RIDGE_NVCC)
    execute_process(COMMAND ${RIDGE_NVCC} --version OUTPUT_VARIABLE nvcc_says)
    if(nvcc_says MATCHES "release ([0-9.]+)")
      set(RIDGE_NVCC_VERSION ${CMAKE_MATCH_1})
    endif()
  endif()
  if(RIDGE_NVCC_VERSION VERSION_GREATER_EQUAL RIDGE_CUDA_MINIMUM)
    set(RIDGE_HAVE_CUDA TRUE)
  elseif(RIDGE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RIDGE_CUDA is ON and no nvcc of CUDA ${RIDGE_CUDA_MINIMUM} or later was found")
  else()
    message(STATUS "CUDA: no nvcc of CUDA ${RIDGE_CUDA_MINIMUM} or later, no CUDA backend")
  endif()
endif()

if(RIDGE_HAVE_CUDA)
  set(CMAKE_CUDA_COMPILER ${RIDGE_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES OFF) # given below, exactly
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
  set(CMAKE_CUDA_STANDARD 17) # for CMake's own probes
  enable_language(CUDA)
  # CMake 3.25 does not know that nvcc speaks C++20.
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, sm_${RIDGE_CUDA_ARCHITECTURES}, PTX ${RIDGE_CUDA_PTX}")

  # A card of sm_90 asks for its own instructions by the code's version, which does not tell 90 from 90a.
  foreach(architecture ${RIDGE_CUDA_ARCHITECTURES} ${RIDGE_CUDA_PTX})
    if(architecture STREQUAL "90")
      message(FATAL_ERROR "RIDGE_CUDA_ARCHITECTURES, RIDGE_CUDA_PTX: code for sm_90 is made as 90a")
    endif()
  endforeach()
  add_library(ridge_cuda_options INTERFACE)
  foreach(architecture ${RIDGE_CUDA_ARCHITECTURES})
    target_compile_options(ridge_cuda_options INTERFACE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_${architecture},code=sm_${architecture}>")
  endforeach()
  if(RIDGE_CUDA_PTX)
    target_compile_options(ridge_cuda_options INTERFACE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_${RIDGE_CUDA_PTX},code=compute_${RIDGE_CUDA_PTX}>")
  endif()
  target_compile_options(ridge_cuda_options INTERFACE
    # The numerics contract: a multiply and an add are fused only where the code says so. Subnormals are kept, division and
    # square root are rounded correctly (nvcc's defaults, which must not change).
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-fmad=false -ftz=false -prec-div=true -prec-sqrt=true>"
    # Device code may call constexpr functions of the standard library (std::bit_cast).
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:--expt-relaxed-constexpr -Werror all-warnings -lineinfo>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall,-Wextra,-ffp-contract=off>")
  if(RIDGE_BOUNDED_SPINS)
    target_compile_definitions(ridge_cuda_options INTERFACE RIDGE_BOUNDED_SPINS)
  endif()
  target_link_libraries(ridge_cuda_options INTERFACE CUDA::cudart_static)
endif()

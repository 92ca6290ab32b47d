# libgaac_cuda: the kernels of src/cuda for NVIDIA GPUs. Built where nvcc is found; no GPU is needed to build it.
set(GAAC_BUILD_CUDA AUTO CACHE STRING "Build libgaac_cuda: ON, OFF, or AUTO (where nvcc is found)")
set_property(CACHE GAAC_BUILD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(GAAC_CUDA_ARCHITECTURES 80 86 89 90 100 120 121 CACHE STRING
  "Compute capabilities to make code for; newer GPUs run the PTX of the last")

# Tells whether the library is built.
set(GAAC_CUDA FALSE)
if(GAAC_BUILD_CUDA STREQUAL AUTO AND CMAKE_CROSSCOMPILING)
  return()
endif()
if(NOT GAAC_BUILD_CUDA)
  return()
endif()

# scripts/get-cuda.sh unpacks a compiler under build/deps/cuda.
find_program(GAAC_NVCC nvcc
  HINTS ENV CUDACXX ENV CUDA_PATH ENV CUDA_HOME PATH_SUFFIXES bin
  PATHS /usr/local/cuda/bin ${CMAKE_SOURCE_DIR}/build/deps/cuda/bin
  DOC "NVIDIA's CUDA compiler")
list(TRANSFORM GAAC_CUDA_ARCHITECTURES APPEND -real OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
list(POP_BACK CMAKE_CUDA_ARCHITECTURES)
list(GET GAAC_CUDA_ARCHITECTURES -1 GAAC_CUDA_LAST_ARCHITECTURE)
list(APPEND CMAKE_CUDA_ARCHITECTURES ${GAAC_CUDA_LAST_ARCHITECTURE})
if(GAAC_NVCC)
  set(ENV{CUDACXX} ${GAAC_NVCC})
  if(GAAC_BUILD_CUDA STREQUAL AUTO)
    include(CheckLanguage)
    check_language(CUDA)
  else()
    set(CMAKE_CUDA_COMPILER ${GAAC_NVCC})
  endif()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  if(GAAC_BUILD_CUDA STREQUAL AUTO)
    message(STATUS "libgaac_cuda is not built: no CUDA compiler that works (nvcc with a C++ compiler) was found")
    return()
  endif()
  message(FATAL_ERROR "GAAC_BUILD_CUDA is ON and no nvcc was found: put it into PATH or set GAAC_NVCC")
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
set(GAAC_CUDA TRUE)

file(GLOB GAAC_CUDA_SOURCES CONFIGURE_DEPENDS src/cuda/*.cu)
add_library(gaac_cuda_objects OBJECT ${GAAC_CUDA_SOURCES})
set_target_properties(gaac_cuda_objects PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
  CUDA_VISIBILITY_PRESET hidden)
# No exceptions, no run-time types, no guards of static variables: the library needs nothing of libstdc++.
# Functions for both host and device have pragmas that only the device compiler knows.
target_compile_options(gaac_cuda_objects PRIVATE
  -Xcompiler=-Wall,-Wextra,-Wno-unknown-pragmas,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
  $<$<BOOL:${GAAC_WERROR}>:-Werror=all-warnings>
  # A quarter of the size. Every driver that runs what CUDA 13 makes can unpack it.
  $<$<VERSION_GREATER_EQUAL:${CMAKE_CUDA_COMPILER_VERSION},13.0>:--compress-mode=size>)
target_include_directories(gaac_cuda_objects PRIVATE src PUBLIC
  ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_BINARY_DIR}/include)

# What of libgaac it calls. The shared library has copies of its own, so that it does not need libgaac; the static one
# takes them from there, so that a program may link both archives.
file(GLOB GAAC_CUDA_C_SOURCES CONFIGURE_DEPENDS src/format/*.c)
list(APPEND GAAC_CUDA_C_SOURCES src/base/error.c src/base/memory.c)
add_library(gaac_cuda SHARED $<TARGET_OBJECTS:gaac_cuda_objects> ${GAAC_CUDA_C_SOURCES})
add_library(gaac_cuda_static STATIC $<TARGET_OBJECTS:gaac_cuda_objects>)
target_compile_definitions(gaac_cuda PRIVATE _GNU_SOURCE)
target_include_directories(gaac_cuda PRIVATE src)
set_target_properties(gaac_cuda PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
set_target_properties(gaac_cuda_static PROPERTIES OUTPUT_NAME gaac_cuda)
foreach(target gaac_cuda gaac_cuda_static)
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
# Of the CUDA runtime inside nothing is seen outside, and calls of its own copies stay inside.
target_link_options(gaac_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,--as-needed -Wl,-z,defs)
target_link_libraries(gaac_cuda PRIVATE CUDA::cudart_static)
target_link_libraries(gaac_cuda_static PUBLIC gaac_static CUDA::cudart_static)

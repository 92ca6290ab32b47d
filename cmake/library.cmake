# libgaac: one set of objects, linked as a shared and as a static library.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)

configure_file(${CMAKE_CURRENT_SOURCE_DIR}/cmake/version.h.in
               ${CMAKE_CURRENT_BINARY_DIR}/include/gaac/version.h @ONLY)

file(GLOB GAAC_SOURCES CONFIGURE_DEPENDS
  src/base/*.c src/format/*.c src/codec/*.c src/cache/*.c src/attention/*.c src/cpu/*.c)

# A file's name says which instruction set it may use. The run-time table decides what runs.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  set(GAAC_AVX2_FLAGS -mavx2 -mfma -mbmi -mbmi2 -mpopcnt -mlzcnt -mf16c)
  set(GAAC_AVX512_FLAGS ${GAAC_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi
      -mavx512vbmi2 -mprefer-vector-width=512)
  foreach(source ${GAAC_SOURCES})
    if(source MATCHES "_amx\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "${GAAC_AVX512_FLAGS};-mavx512bf16;-mamx-tile;-mamx-bf16")
    elseif(source MATCHES "_avx512bf16\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${GAAC_AVX512_FLAGS};-mavx512bf16")
    elseif(source MATCHES "_avx512\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${GAAC_AVX512_FLAGS}")
    elseif(source MATCHES "_avx2\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${GAAC_AVX2_FLAGS}")
    endif()
  endforeach()
else()
  list(FILTER GAAC_SOURCES EXCLUDE REGEX "_(avx2|avx512|avx512bf16|amx)\\.c$")
endif()
# Advanced SIMD is part of every 64-bit Arm that Linux runs on.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  foreach(source ${GAAC_SOURCES})
    if(source MATCHES "_neonbf16\\.c$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+bf16")
    endif()
  endforeach()
else()
  list(FILTER GAAC_SOURCES EXCLUDE REGEX "_(neon|neonbf16)\\.c$")
endif()

add_library(gaac_objects OBJECT ${GAAC_SOURCES})
# Contracting a*b+c where the compiler likes would make the raw and the coded path differ.
target_compile_options(gaac_objects PRIVATE -ffp-contract=off -fno-math-errno)
target_compile_definitions(gaac_objects PRIVATE _GNU_SOURCE)
target_include_directories(gaac_objects PRIVATE src PUBLIC
  ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_CURRENT_BINARY_DIR}/include)
target_link_libraries(gaac_objects PRIVATE PkgConfig::CJSON Threads::Threads)

foreach(kind SHARED STATIC)
  string(TOLOWER gaac_${kind} target)
  add_library(${target} ${kind} $<TARGET_OBJECTS:gaac_objects>)
  set_target_properties(${target} PROPERTIES OUTPUT_NAME gaac EXPORT_NAME ${target})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include>
    $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PRIVATE PkgConfig::CJSON Threads::Threads m)
endforeach()
set_target_properties(gaac_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

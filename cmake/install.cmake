# What `make install` puts where, and how other projects find it: pkg-config and find_package(gaac).
include(CMakePackageConfigHelpers)

install(DIRECTORY include/gaac DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN gaac_cuda.h EXCLUDE)
if(GAAC_CUDA)
  install(FILES include/gaac/gaac_cuda.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gaac)
endif()
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/include/gaac/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gaac)

# Two export sets: who links the shared library needs nothing else, who links the static one needs
# cJSON's development files too.
set(GAAC_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/gaac)
set_target_properties(gaac_shared PROPERTIES EXPORT_NAME shared)
set_target_properties(gaac_static PROPERTIES EXPORT_NAME static)
target_compile_definitions(gaac_static INTERFACE GAAC_STATIC)
foreach(kind shared static)
  install(TARGETS gaac_${kind} EXPORT gaac_${kind}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT gaac_${kind} FILE gaac-${kind}.cmake NAMESPACE gaac:: DESTINATION ${GAAC_PACKAGE_DIR})
endforeach()

# libgaac_cuda, where it is built: likewise.
if(GAAC_CUDA)
  set_target_properties(gaac_cuda PROPERTIES EXPORT_NAME cuda)
  set_target_properties(gaac_cuda_static PROPERTIES EXPORT_NAME cuda_static)
  foreach(kind cuda cuda_static)
    install(TARGETS gaac_${kind} EXPORT gaac_${kind}
      LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT gaac_${kind} FILE gaac-${kind}.cmake NAMESPACE gaac:: DESTINATION ${GAAC_PACKAGE_DIR})
  endforeach()
endif()

configure_package_config_file(cmake/gaacConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/gaacConfig.cmake
  INSTALL_DESTINATION ${GAAC_PACKAGE_DIR})
# Before 1.0 a minor version may break the API.
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/gaacConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gaacConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gaacConfigVersion.cmake
  DESTINATION ${GAAC_PACKAGE_DIR})

# The .pc files name the folders relative to their own, so that an installed tree can be moved.
file(RELATIVE_PATH GAAC_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" GAAC_PC_PREFIX "${GAAC_PC_PREFIX}")
foreach(dir LIBDIR INCLUDEDIR)
  set(GAAC_PC_${dir} ${CMAKE_INSTALL_${dir}})
  if(NOT IS_ABSOLUTE "${GAAC_PC_${dir}}")
    set(GAAC_PC_${dir} "\${prefix}/${GAAC_PC_${dir}}")
  endif()
endforeach()
set(GAAC_PC_FILES gaac)
if(GAAC_CUDA)
  list(APPEND GAAC_PC_FILES gaac_cuda)
endif()
foreach(name ${GAAC_PC_FILES})
  configure_file(cmake/${name}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

install(FILES CHANGELOG.md README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES examples/cuda_layer.c DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

# 64-bit Arm from another machine: Debian's cross compiler, tests under qemu's user mode. The libraries that are
# not libc's (cmocka, cJSON, xxHash) lie where scripts/get-arm64.sh unpacks them; nothing of the machine itself is found.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
# The CPU is "max", with every extension that qemu knows, BF16 among them; QEMU_CPU=cortex-a72 is one without.
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu")

get_filename_component(GAAC_ARM64_ROOT "${CMAKE_CURRENT_LIST_DIR}/../build/deps/arm64" ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH "${GAAC_ARM64_ROOT}" /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} "${GAAC_ARM64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig")
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${GAAC_ARM64_ROOT}")

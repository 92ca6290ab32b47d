# A thin layer over the CMake presets (CMakePresets.json) and scripts/. All that is built or fetched
# lies under build/; build/deps (stock llama.cpp, the model) survives `make clean`.
#
#   make           build the library, the command and the plug-in (build/release)
#   make test      install what is missing, build, run all tests, the sanitizers and the linters
#   make test-arm  64-bit Arm: build with a cross compiler, run the unit tests under qemu (make test does it too)
#   make cuda-device  GPU tests to carry to a machine with a GPU of compute capability 9.0 (build/cuda-device)
#   make demo      stock llama.cpp with and without GAAC, side by side (FRESH=1: keep nothing)
#   make fuzz      fuzz what reads untrusted bytes, each target TIME=120 seconds (FUZZ="slot gguf": only these)
#   make lint      clang-format, cppcheck, clang-tidy
#   make bench     time the kernels, each checked first, and attention against the machine's bandwidth
#   make bench-targets   all benchmarks, beside ggml and stock llama.cpp too, against what we set out for
#   make install   to PREFIX (default /usr/local), below DESTDIR if set
#   make deps      install what all of this needs, through apt-get
#   make clean     remove what was built here; make distclean removes the fetched things too
SHELL := /bin/bash
.DEFAULT_GOAL := all
.PHONY: bench-targets all build deps test test-arm cuda-device demo fuzz lint bench install clean distclean

PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# Asked when a recipe runs, not when this file is read: `make test` may have installed them by then.
ENV = $(if $(shell command -v ninja),CMAKE_GENERATOR=Ninja) \
      $(if $(shell command -v ccache),CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$(CURDIR))
build-preset = $(ENV) cmake --preset $(1) $(2) >build/configure-$(1).log || { cat build/configure-$(1).log; exit 1; }; \
               cmake --build --preset $(1)

all:
	@scripts/get-deps.sh --check build
	@$(MAKE) --no-print-directory build

# The tests need cmocka, which who only builds does not. Without nvcc there is no libgaac_cuda: that is said in a line.
build:
	@mkdir -p build
	@$(call build-preset,release,-DGAAC_BUILD_TESTS=$(if $(shell pkg-config --exists cmocka && echo y),ON,OFF))
	@sed -n 's/^-- \(libgaac_cuda is not built\)/\1/p' build/configure-release.log

deps:
	@scripts/get-deps.sh test

# The logs keep what ctest printed: .ci/run shows their ends.
test: deps
	@scripts/get-models.sh
	@scripts/get-stock.sh all
	@scripts/get-cuda.sh
	@echo "== Release: build and all tests"
	@$(MAKE) --no-print-directory build
	@set -o pipefail; ctest --preset release --parallel $(JOBS) | tee build/test-release.log
	@echo "== AddressSanitizer and UBSan: build and unit tests"
	@$(call build-preset,debug)
	@set -o pipefail; ctest --preset debug --parallel $(JOBS) | tee build/test-debug.log
	@echo "== Clang: build, warnings are errors"
	@$(call build-preset,clang)
	@$(MAKE) --no-print-directory test-arm
	@echo "== Fuzzing: a minute over all targets"
	@$(call build-preset,fuzz)
	@scripts/fuzz.sh --smoke 60
	@echo "== Lint"
	@scripts/lint.sh

# Where the machine is 64-bit Arm, its own tests have run these kernels.
test-arm: deps
ifeq ($(filter aarch64 arm64,$(shell uname -m)),)
	@echo "== 64-bit Arm: cross build, unit tests under qemu"
	@mkdir -p build
	@scripts/get-arm64.sh
	@$(call build-preset,arm64)
	@set -o pipefail; ctest --preset arm64 --parallel $(JOBS) | tee build/test-arm64.log
endif

cuda-device: deps
	@mkdir -p build
	@scripts/get-cuda.sh
	@$(call build-preset,cuda-device)
	@scripts/cuda-device.sh

demo:
	@scripts/get-deps.sh build
	@scripts/get-models.sh
	@scripts/get-stock.sh libs
	@$(MAKE) --no-print-directory build
	@python3 bench/demo/demo.py --kvrun build/release/bench/demo/kvrun \
	    --plugin build/release/integrations/llama.cpp/libggml-gaac.so $(if $(FRESH),--fresh) $(DEMO_FLAGS)

fuzz: deps
	@mkdir -p build
	@$(call build-preset,fuzz)
	@scripts/fuzz.sh --time $(or $(TIME),120) $(FUZZ)

lint: deps build
	@scripts/lint.sh

bench: deps build
	@build/release/tests/harness/gaac_harness --bench
	@build/release/tools/gaac bench attention

# Needs a machine with nothing else to do. BENCH_FLAGS="--skip gemma" and so on: bench/targets.py --help.
bench-targets: deps
	@scripts/get-models.sh smollm2 gemma
	@scripts/get-stock.sh libs
	@$(MAKE) --no-print-directory build
	@python3 bench/targets.py $(BENCH_FLAGS)

install: all
	@cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build/release build/debug build/tsan build/clang build/arm64 build/fuzz build/cuda-device build/cuda-device-tree build/demo build/demo.json build/*.log build/lint

distclean:
	rm -rf build

#!/usr/bin/env bash
# Builds stock llama.cpp, unchanged, and keeps it:
#   build/deps/stock          the build tree: libraries and programs in bin/
#   build/deps/stock-source   the source tree
# The source is the one inside a pinned release of llama-cpp-python, taken through pip and checked
# against its SHA-256 before anything of it runs.
#   scripts/get-stock.sh [libs|all]      libs: the libraries (what the demo needs). all: the programs
#                                        and tests of llama.cpp too (what `make test` needs; default)
# Where an unpacked source and a build of it exist already, GAAC_STOCK_SOURCE and GAAC_STOCK_DIR
# (both) name them, and this script only points at them.
set -euo pipefail

version=0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

root=$(cd "$(dirname "$0")/.." && pwd)
deps=$root/build/deps
tree=$deps/stock
source=$deps/stock-source
what=${1:-all}
targets_of() {
    case $1 in
    libs) echo llama ggml-cpu ;;
    all)
        echo llama ggml-cpu llama-server llama-bench llama-cli llama-completion llama-perplexity llama-quantize \
            test-backend-ops test-save-load-state test-llama-archs
        ;;
    *) echo "get-stock.sh: unknown set '$1' (libs or all)" >&2; return 2 ;;
    esac
}
names=$(targets_of "$what")
read -ra targets <<<"$names"
mkdir -p "$deps"

point_at() { # link, target: a link of ours may be replaced, a folder may not
    [ ! -e "$1" ] || [ -L "$1" ] || rm -rf "$1"
    ln -sfn "$2" "$1"
}
if [ -n "${GAAC_STOCK_DIR:-}" ] || [ -n "${GAAC_STOCK_SOURCE:-}" ]; then
    [ -e "${GAAC_STOCK_DIR:-}/bin/libllama.so" ] || {
        echo "get-stock.sh: GAAC_STOCK_DIR must name a finished build with bin/libllama.so" >&2; exit 1; }
    [ -e "${GAAC_STOCK_SOURCE:-}/include/llama.h" ] || {
        echo "get-stock.sh: GAAC_STOCK_SOURCE must name that build's source, with include/llama.h" >&2; exit 1; }
    # A kept build moves aside rather than away: it costs minutes.
    for kept in "$tree" "$source"; do
        [ -L "$kept" ] || [ ! -d "$kept" ] || { rm -rf "$kept.kept"; mv "$kept" "$kept.kept"; }
    done
    point_at "$tree" "$GAAC_STOCK_DIR"
    point_at "$source" "$GAAC_STOCK_SOURCE"
    exit 0
fi
for kept in "$tree" "$source"; do
    [ ! -L "$kept" ] || { rm "$kept"; [ ! -d "$kept.kept" ] || mv "$kept.kept" "$kept"; }
done

# GGML_BACKEND_DL (plug-ins) rules out GGML_NATIVE, so the instruction sets that -march=native would
# turn on are named one by one: asked from the compiler, which knows the machine. But for AMX: virtual
# machines were seen that announce it and then end the program at its first tile instruction. It serves
# the weights only, and those are the same with and without GAAC. AVX512-FP16, which ggml has no option
# for, stays off too: with it stock decodes half as fast from an f16 cache (27 tokens/s, not 51, measured).
native_flags() {
    local macros macro option
    macros=$(${CC:-cc} -march=native -dM -E - </dev/null)
    has() { grep -q "#define __$1__ " <<<"$macros"; }
    case $(uname -m) in
    x86_64)
        for option in SSE42:SSE4_2 AVX:AVX AVX2:AVX2 FMA:FMA F16C:F16C BMI2:BMI2 AVX_VNNI:AVXVNNI \
            AVX512:AVX512BW AVX512_VBMI:AVX512VBMI AVX512_VNNI:AVX512VNNI AVX512_BF16:AVX512BF16 \
            AMX_TILE:- AMX_INT8:- AMX_BF16:-; do
            macro=${option#*:}
            if has "$macro"; then echo "-DGGML_${option%%:*}=ON"; else echo "-DGGML_${option%%:*}=OFF"; fi
        done
        ;;
    aarch64 | arm64) echo "-DGGML_CPU_ARM_ARCH=native" ;;
    esac
}
mapfile -t native < <(native_flags)
options=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF "${native[@]}"
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF
    # Run from where it is built, and found there by what links to it, wherever the folder is moved.
    '-DCMAKE_BUILD_RPATH=$ORIGIN' -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON)
key="$version $sha256 $(${CC:-cc} -dumpfullversion) ${options[*]}"
stamp_of() { echo "$key: $(targets_of "$1")"; }
stamp_is() { [ -f "$tree/gaac-stamp-$1" ] && [ "$(cat "$tree/gaac-stamp-$1")" = "$(stamp_of "$1")" ]; }
if stamp_is all || stamp_is "$what"; then exit 0; fi

if [ ! -f "$source/include/llama.h" ] || [ "$(cat "$source/gaac-source" 2>/dev/null)" != "$sha256" ]; then
    archive=$deps/llama_cpp_python-$version.tar.gz
    if ! echo "$sha256  $archive" | sha256sum --check --status 2>/dev/null; then
        echo "Fetching llama-cpp-python $version (the source of llama.cpp, 77 MB) through pip"
        printf 'llama-cpp-python==%s --hash=sha256:%s\n' "$version" "$sha256" >"$deps/stock-requirements.txt"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
            --no-binary llama-cpp-python --requirement "$deps/stock-requirements.txt" --dest "$deps"
        echo "$sha256  $archive" | sha256sum --check --status
    fi
    rm -rf "$source" "$source.new"
    mkdir "$source.new"
    tar -xzf "$archive" -C "$source.new" --strip-components=3 "llama_cpp_python-$version/vendor/llama.cpp"
    # A file that points at a repository which isn't there: with it, ninja stops with "manifest still dirty".
    rm -rf "$source.new/.git"
    echo "$sha256" >"$source.new/gaac-source"
    mv "$source.new" "$source"
fi

jobs=$(nproc 2>/dev/null || echo 2)
log=$deps/stock.log
echo "Building stock llama.cpp ($what) in build/deps/stock with $jobs jobs: once, some minutes; log in build/deps/stock.log"
generator=()
! command -v ninja >/dev/null 2>&1 || generator=(-G Ninja)
# Objects found in ccache, if it is there, serve another checkout as well.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
rm -f "$tree"/gaac-stamp-*
if [ -f "$tree/gaac-key" ] && [ "$(cat "$tree/gaac-key")" != "$key" ]; then rm -rf "$tree"; fi
mkdir -p "$tree"
echo "$key" >"$tree/gaac-key"
fail() {
    echo "get-stock.sh: building llama.cpp failed; the end of $log:" >&2
    tail -n 30 "$log" >&2
    exit 1
}
cmake -S "$source" -B "$tree" "${generator[@]}" "${options[@]}" >"$log" 2>&1 || fail
cmake --build "$tree" --parallel "$jobs" --target "${targets[@]}" 2>&1 | tee -a "$log" |
    awk '/^\[ *[0-9]+(\/[0-9]+|%)\]/ { if (n++ % 40 == 0) { print "  " $1; fflush() } }' || fail
stamp_of "$what" >"$tree/gaac-stamp-$what"

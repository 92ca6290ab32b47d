#!/usr/bin/env bash
# Installs what building and testing need, where it can: through apt-get, as root or with sudo -n.
# Elsewhere it says what to install, and fails if it can't be done without. Silent when all is there.
#   scripts/get-deps.sh build           what `make` and `make demo` need
#   scripts/get-deps.sh test            everything (default)
#   scripts/get-deps.sh --check build   installs nothing, only says what is missing
set -euo pipefail

check=no
if [ "${1:-}" = --check ]; then check=yes; shift; fi
what=${1:-test}
case $what in build | test) ;; *) echo "get-deps.sh: unknown set '$what' (build or test)" >&2; exit 2 ;; esac

missing=() # can't do without
helpful=() # ninja and ccache only save time; PLplot draws for `gaac inspect --plot`
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_module() { pkg-config --exists "$1" 2>/dev/null || missing+=("$2"); }

need_command cc build-essential
need_command c++ build-essential
need_command make build-essential
need_command cmake cmake
need_command pkg-config pkg-config
need_command python3 python3
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
need_module libcjson libcjson-dev
need_module libxxhash libxxhash-dev
command -v ninja >/dev/null 2>&1 || helpful+=(ninja-build)
command -v ccache >/dev/null 2>&1 || helpful+=(ccache)
if [ "$what" = test ]; then
    need_command clang clang
    # libFuzzer and the sanitizers of clang: a package of its own, which clang merely recommends.
    echo 'int LLVMFuzzerTestOneInput(void *b, unsigned long n) { return !b && n; }' |
        clang -fsanitize=fuzzer,address,undefined -x c -o /dev/null - >/dev/null 2>&1 || missing+=(libclang-rt-dev)
    need_command clang-format clang-format
    need_command clang-tidy clang-tidy
    need_command cppcheck cppcheck
    need_module cmocka libcmocka-dev
    case $(uname -m) in
        aarch64 | arm64) ;;
        *)  need_command aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
            need_command qemu-aarch64 qemu-user ;;
    esac
    pkg-config --exists plplot 2>/dev/null || helpful+=(libplplot-dev plplot-driver-cairo)
fi
wanted=$(printf '%s\n' "${missing[@]}" "${helpful[@]}" | sed '/^$/d' | sort -u | tr '\n' ' ')
[ -n "$wanted" ] || exit 0
required=$(printf '%s\n' "${missing[@]}" | sed '/^$/d' | sort -u | tr '\n' ' ')

as_root=()
may_install=$(command -v apt-get >/dev/null 2>&1 && echo yes || echo no)
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then as_root=(sudo -n); else may_install=no; fi
fi
if [ $check = yes ] || [ "$may_install" = no ]; then
    [ -n "$required" ] || exit 0
    echo "GAAC needs these packages (Debian's names):" >&2
    echo "    $required" >&2
    echo "Install them with your system's package manager, then run the same command again." >&2
    [ $check = no ] || echo "(make deps does it through apt-get, as root or with sudo.)" >&2
    exit 1
fi

echo "Installing with apt-get: $wanted"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1; }
# The package lists of a fresh machine are empty, and old ones name versions that are gone.
quietly apt-get update -q || { cat "$log" >&2; exit 1; }
# shellcheck disable=SC2086 # words on purpose
quietly apt-get install -y -q --no-install-recommends $wanted || { cat "$log" >&2; exit 1; }

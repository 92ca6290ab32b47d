#!/usr/bin/env bash
# Installs what building and testing need, where it can: through apt-get, as root or with sudo -n.
# Elsewhere it says what to install and fails. Prints nothing when everything is there.
#   scripts/get-deps.sh [build|test]     build: what `make` and `make demo` need. test: all (default)
set -euo pipefail

what=${1:-test}
case $what in build | test) ;; *) echo "get-deps.sh: unknown set '$what' (build or test)" >&2; exit 2 ;; esac

missing=()
need_command() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_module() { pkg-config --exists "$1" 2>/dev/null || missing+=("$2"); }

need_command cc build-essential
need_command c++ build-essential
need_command make build-essential
need_command cmake cmake
need_command ninja ninja-build
need_command ccache ccache
need_command pkg-config pkg-config
need_command python3 python3
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
need_module libcjson libcjson-dev
if [ "$what" = test ]; then
    need_command clang clang
    need_command clang-format clang-format
    need_command clang-tidy clang-tidy
    need_command cppcheck cppcheck
    need_module cmocka libcmocka-dev
fi
[ ${#missing[@]} -eq 0 ] && exit 0

mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then as_root=(sudo -n); else as_root=(false); fi
fi
if ! command -v apt-get >/dev/null 2>&1 || [ "${as_root[*]:-}" = false ]; then
    echo "GAAC needs these packages (Debian's names), and this script may not install them here:" >&2
    echo "    ${packages[*]}" >&2
    echo "Install them with your system's package manager, then run the same command again." >&2
    exit 1
fi

echo "Installing with apt-get: ${packages[*]}"
install_packages() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends "${packages[@]}" >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists of a fresh machine are empty or old: refresh them, then install.
"${as_root[@]}" apt-get update -q >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
install_packages || { cat "$log" >&2; exit 1; }

#!/usr/bin/env bash
# Takes the libraries that are needed on 64-bit Arm (cmocka, cJSON, xxHash) out of the system's package index and
# unpacks them under build/deps/arm64, for cmake/aarch64-linux-gnu.cmake. Nothing is installed, the system's
# own package lists are not touched, and no rights are needed. The compiler and qemu come from get-deps.sh.
set -euo pipefail

packages=(libcmocka0 libcmocka-dev libcjson1 libcjson-dev libxxhash0 libxxhash-dev)
root=$(cd "$(dirname "$0")/.." && pwd)/build/deps
if [ -e "$root/arm64/usr/include/cmocka.h" ]; then exit 0; fi
for command in apt-get dpkg-deb; do
    command -v $command >/dev/null || {
        echo "get-arm64.sh: no $command here: unpack ${packages[*]} for arm64 into build/deps/arm64" >&2; exit 1; }
done

echo "Fetching for arm64, through apt-get: ${packages[*]}"
work=$root/arm64.new
rm -rf "$work" "$root/arm64"
mkdir -p "$work"/{lists/partial,cache/archives/partial,packages,root}
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=
     -o Dir::State::Lists="$work/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$work/cache")
{ "${apt[@]}" update && cd "$work/packages" && "${apt[@]}" download "${packages[@]}"; } >"$root/arm64.log" 2>&1 ||
    { cat "$root/arm64.log" >&2; exit 1; }
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
mv "$work/root" "$root/arm64"
rm -rf "$work"

#!/usr/bin/env bash
# clang-format, cppcheck and clang-tidy over the tree. Any finding fails.
#   scripts/lint.sh [BUILD_TREE]    the tree's compile_commands.json is used; default build/release
# Files that it doesn't compile, those of 64-bit Arm, are taken from build/arm64 where `make test-arm` has made that.
set -euo pipefail
cd "$(dirname "$0")/.."
tree=${1:-build/release}
jobs=$(nproc 2>/dev/null || echo 2)
[ -f "$tree/compile_commands.json" ] || {
    echo "lint.sh: $tree/compile_commands.json is missing: run make first" >&2; exit 1; }
mkdir -p build/lint

folders=(bench examples fuzz include integrations src tests tools)
mapfile -t sources < <(find "${folders[@]}" -name '*.[ch]' | sort)
# CUDA and C++: formatted alike. clang-tidy 14 and cppcheck don't know CUDA 13's headers.
mapfile -t others < <(find "${folders[@]}" -type f \( -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) | sort)

status=0
echo "clang-format: $((${#sources[@]} + ${#others[@]})) files"
for source in "${sources[@]}" "${others[@]}"; do
    clang-format --dry-run --Werror "$source" >/dev/null 2>&1 ||
        { echo "$source: not formatted (clang-format -i)" >&2; status=1; }
done

# The compile database without what is not ours to judge: nothing outside this folder, one entry a file.
python3 - "$tree" "${sources[@]}" <<'PYTHON'
import json, pathlib, sys
ours = {str(pathlib.Path(name).resolve()) for name in sys.argv[2:]}
seen = {}
for tree in (sys.argv[1], "build/arm64"):
    database = pathlib.Path(tree, "compile_commands.json")
    for entry in json.loads(database.read_text(encoding="utf-8")) if database.exists() else []:
        path = str((pathlib.Path(entry["directory"]) / entry["file"]).resolve())
        if path in ours:
            seen.setdefault(path, dict(entry, file=path))
pathlib.Path("build/lint/compile_commands.json").write_text(json.dumps(list(seen.values())), encoding="utf-8")
pathlib.Path("build/lint/files.txt").write_text("".join(path + "\n" for path in sorted(seen)), encoding="utf-8")
PYTHON
files=$(wc -l <build/lint/files.txt)
[ "$files" -gt 0 ] || { echo "lint.sh: $tree compiles no file of this repository" >&2; exit 1; }

# abi_check.c refuses hosts that it does not know, and cppcheck sees no host's headers. ctuuninitvar takes the address of
# an output parameter's array for a use of what it holds.
echo "cppcheck: $files files"
mkdir -p build/lint/cppcheck
cppcheck --quiet --project=build/lint/compile_commands.json --cppcheck-build-dir=build/lint/cppcheck -j "$jobs" \
    --enable=warning,performance,portability --std=c11 --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=ctuuninitvar --suppress='preprocessorErrorDirective:*abi_check.c' \
    --suppress='*:*/build/deps/*' || status=1

echo "clang-tidy: $files files"
# Its standard error only counts the warnings that it does not show, but for real trouble.
xargs -P "$jobs" -n 1 clang-tidy --quiet -p build/lint <build/lint/files.txt 2>build/lint/clang-tidy.err || {
    grep -v 'warnings\? generated' build/lint/clang-tidy.err >&2 || true
    status=1
}
[ $status -eq 0 ] && echo "lint: clean" || { echo "lint.sh: findings above" >&2; exit 1; }

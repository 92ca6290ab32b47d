#!/usr/bin/env bash
# Runs the fuzz targets of build/fuzz (`make fuzz` builds them), as many at a time as there are CPUs. A target that
# finds something fails: its input and the log's last lines are shown.
#   scripts/fuzz.sh --time SECONDS [NAME...]    each target so long (default 120); what it learns stays in
#                                               build/fuzz/corpus and is where the next run goes on
#   scripts/fuzz.sh --smoke SECONDS             all targets in about so long, from the committed seeds alone
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '4,6s/^# *//p' "$0" >&2; exit 2; }
mode=--time seconds=120
case ${1:-} in --time | --smoke) mode=$1 seconds=${2:-}; shift 2 || usage ;; -*) usage ;; esac
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage

tree=build/fuzz
known=(fuzz/fuzz_*.c)
known=("${known[@]#fuzz/fuzz_}")
names=("${@:-${known[@]%.c}}")
jobs=$(nproc 2>/dev/null || echo 2)
rounds=$(((${#names[@]} + jobs - 1) / jobs))
if [ "$mode" = --smoke ]; then seconds=$(((seconds + rounds - 1) / rounds)); fi

for name in "${names[@]}"; do
    [ -x "$tree/fuzz/fuzz_$name" ] || {
        echo "fuzz.sh: there is no $tree/fuzz/fuzz_$name: run make fuzz (targets: ${known[*]%.c})" >&2; exit 1; }
done

# One target. libFuzzer writes what it learns to the first folder, and only reads the second.
run_target() {
    local name=$1 learnt=$tree/corpus/$1 log=$tree/$1.log dictionary=fuzz/$1.dict
    if [ "$mode" = --smoke ]; then learnt=$tree/smoke/$name; rm -rf "$learnt"; fi
    mkdir -p "$learnt" "$tree/failed"
    # An input takes milliseconds; a minute is a hang, and not a machine that was held up.
    local options=(-max_total_time="$seconds" -timeout=60 -report_slow_units=60 -print_final_stats=1
        -artifact_prefix="$tree/failed/$name-")
    [ ! -f "$dictionary" ] || options+=(-dict="$dictionary")
    if "$tree/fuzz/fuzz_$name" "${options[@]}" "$learnt" "fuzz/corpus/$name" >"$log" 2>&1; then
        local cov
        cov=$(sed -nE 's/.*\sDONE *cov: (\S+) ft: (\S+) corp: ([0-9]+).*/\1 edges, \2 features, \3 inputs kept/p' "$log")
        printf '%-10s %9s executions in %s s; %s\n' "$name" \
            "$(sed -n 's/stat::number_of_executed_units: *//p' "$log")" "$seconds" "$cov"
    else
        { echo "fuzz.sh: $name found something ($log):"
          grep -aE 'does not hold|ERROR|SUMMARY|runtime error|Test unit written' "$log" || tail -n 20 "$log"
          echo "Run it alone: $tree/fuzz/fuzz_$name FILE. With its fix the input goes into fuzz/corpus/$name."; } >&2
        return 1
    fi
}
export -f run_target
export mode seconds tree

printf '%s\0' "${names[@]}" | xargs -0 -P "$jobs" -I NAME bash -c 'run_target NAME' ||
    { echo "fuzz.sh: findings above" >&2; exit 1; }

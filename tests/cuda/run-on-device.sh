#!/usr/bin/env bash
# Runs the GPU tests that lie beside it in bin/ (scripts/cuda-device.sh packs them) and ends with a line for each. Fails
# when a test fails or is skipped.
#   run-on-device.sh [--memcheck] [--racecheck] [--only NAME]...
# --memcheck, --racecheck: also under compute-sanitizer's tool of that name, with few and small cases.
# --only: tests whose names contain NAME.
# Of a failed test the end of what it printed is shown; all of it goes to a folder below /tmp, and where OUT names a
# folder, into one file there.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
logs=$(mktemp -d /tmp/gaac-cuda-XXXXXX)
tools=() only=()
while [ $# -gt 0 ]; do
    case $1 in
        --memcheck | --racecheck) tools+=("${1#--}") ;;
        --only) only+=("$2"); shift ;;
        *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done

wanted() {
    [ ${#only[@]} -gt 0 ] || return 0
    local name
    for name in "${only[@]}"; do [[ $1 == *"$name"* ]] && return 0; done
    return 1
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true
status=0 summary=()
run() { # NAME COMMAND...: runs a test, takes a line for the summary
    local name=$1 log=$logs/$1.log start rc verdict
    shift
    start=$(date +%s.%N)
    "$@" >"$log" 2>&1
    rc=$?
    case $rc in
        0) verdict=passed ;;
        77) verdict=SKIPPED status=1 ;;
        *) verdict="FAILED ($rc)" status=1 ;;
    esac
    summary+=("$(printf '%-44s %-12s %6.1f s  %s' "$name" "$verdict" "$(echo "$(date +%s.%N) $start" |
        awk '{ print $1 - $2 }')" "$(grep -aE 'test\(s\)|ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tr -s ' \n' ' ' |
        cut -c1-100)")")
    [ $rc -eq 0 ] || { echo "== $name"; grep -avE '^(shape|random|long|many|same bits) [0-9]' "$log" | tail -n 25; }
}

count=0
for program in "$here"/bin/test_*; do
    name=$(basename "$program")
    wanted "$name" || continue
    count=$((count + 1))
    arguments=()
    # The CPU's blocks came along; the GPU's are to become tests/cuda/golden/gpu-blocks.json.
    [ "$name" != test_cuda_travel ] || arguments=("$here/cpu-blocks.json" "${OUT:-$logs}/gpu-blocks.json")
    run "$name" "$program" ${arguments[@]+"${arguments[@]}"}
    for tool in ${tools[@]+"${tools[@]}"}; do
        run "$name.$tool" env GAAC_TEST_SMALL=1 compute-sanitizer --tool "$tool" --error-exitcode 9 "$program"
    done
done
printf '%s\n' ${summary[@]+"${summary[@]}"}
[ -z "${OUT:-}" ] || tail -n +1 "$logs"/* >"$OUT/cuda-tests.log"
[ $count -gt 0 ] || { echo "run-on-device.sh: no such test" >&2; exit 2; }
[ $status -eq 0 ] && echo "all passed; logs in $logs" || echo "NOT all passed; logs in $logs"
exit $status

#!/bin/sh
# compute-sanitizer over every CUDA op and every wrapped instruction, at sizes that take under a minute a tool.
#
#   PYTHON=.venv/bin/python sh tests/kernels/cuda/sanitize.sh [LOGS]     (or: make test-gpu sanitize)
#
# Run the tests without it once before: kernels are then in the cache. Graph replays and launches that are meant
# to fail are left out. Kernels that are not ours are not instrumented, and without torch's caching allocator
# every tensor is an allocation of its own, so that memcheck sees the end of each. The last line of each run is
# printed; the whole logs are in LOGS. Exits with 1 unless every run is clean. racecheck gets kernels compiled for it
# (csrc/cuda/attention/ring.cuh says why), which are made first.
set -u
python=${PYTHON:-python3}
logs=${1:-build/sanitize}
seconds=${SECONDS_EACH:-90}
here=$(dirname "$0")
mkdir -p "$logs" && rm -f "$logs"/*.log "$logs"/*.status

attention='decode[9-3 or decode[32-8-128-dtype0 or batches[9-3 or batches[32-8-128-dtype0 or blocks[lengths1'
attention="$attention or blocks[lengths3 or several_tiles or pages_copied_by_lanes or left_alone"
rows='30-576 or 30-14336 or int8 or odd_values or embedding or (sampling and not 128256)'
headers='headers and not graph'
gemm='(exact and g128 and (130 or small) and (wide32x128h2 or wide128x256 or wide64x128t2 or small8x64s1k4'
gemm="$gemm or small32x128s1k2)) or (every_variant and 130 and g128 and (small16x128s2k4 or wide64x128h or wide128x192))"
# Blocks with several tiles, which hand a buffer back by barrier.arrive: racecheck sees no order in that
# (notes/2026-11-30-cuda-correctness.md).
lanes=' or (gemm and lanes and small8x64)'

check() { # tool, group, selection, first of 16 ports of its own
    options=
    [ "$1" = racecheck ] && options=$racecheck_options
    TESSERA_NVRTC_OPTIONS=$options PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout -k 5 "$seconds" compute-sanitizer --tool "$1" --kernel-name kns=tessera \
        --report-api-errors no --target-processes application-only --error-exitcode 9 --print-limit 20 \
        --port "$4" --launch-timeout 60 \
        "$python" -m pytest -q -m gpu -p no:cacheprovider --timeout 0 -k "$3" "$here" >"$logs/$1-$2.log" 2>&1
    echo $? >"$logs/$1-$2.status"
}

racecheck_options=-DTESSERA_RACECHECK
TESSERA_NVRTC_OPTIONS=$racecheck_options "$python" -m pytest -q -m gpu -p no:cacheprovider --timeout 0 \
    -k "($attention) or ($rows) or ($headers) or ($gemm)" "$here" >"$logs/racecheck-kernels.log" 2>&1

port=49152
for tool in memcheck racecheck synccheck; do
    check $tool attention "$attention" $port &
    check $tool rows "$rows" $((port + 16)) &
    check $tool headers "$headers" $((port + 32)) &
    case $tool in racecheck) more= ;; *) more=$lanes ;; esac
    check $tool gemm "$gemm$more" $((port + 48)) &
    port=$((port + 64))
done
wait

failed=0
for status in "$logs"/*.status; do
    log=${status%.status}.log
    passed=$(grep -E '[0-9]+ (passed|failed)' "$log" | tail -1)
    summary=$(grep SUMMARY "$log" | tail -1)
    echo "$(basename "$log" .log): exit $(cat "$status"); ${summary:-no summary}; ${passed:-no tests finished}"
    # Not one run that ended early, found nothing to run, or has anything to report.
    [ "$(cat "$status")" = 0 ] && [ -n "$passed" ] && [ -n "$summary" ] || failed=1
done
exit $failed

#!/usr/bin/env bash
# What is proven on a CUDA device, and attention measured, in stages of at most ten minutes; reports and logs go to OUT.
#
#     bench/on_cuda.sh proof|races|tune|speed|auto OUT
#
# Run from the root of a source tree in which tfkit, the plugins and their tests can be imported. A stage goes on after what
# fails in it, and ends with the number of its commands that failed.
set -uo pipefail
stage=$1 out=$2 failed=0
python=${PYTHON:-python}
mkdir -p "$out"

run() { # run NAME SECONDS COMMAND...: its output goes to OUT/NAME.txt
    local name=$1 seconds=$2
    shift 2
    timeout "$seconds" "$@" > "$out/$name.txt" 2>&1
    local code=$?
    echo "$name: exit code $code; $(tail -n 1 "$out/$name.txt")"
    [ $code -eq 0 ] || failed=$((failed + 1))
}

case $stage in
proof)
    run kernels 200 "$python" -m pytest -q -m gpu plugins/tfkit-fused --ignore plugins/tfkit-fused/tests/test_races.py
    run models 150 "$python" -m pytest -q -m gpu tests
    for backend in fused fused.atomic cudnn; do
        run "conformance_$backend" 80 "$python" -m tfkit conformance "$backend" --device cuda --profile quick \
            --json "$out/conformance_$backend.json"
    done
    ;;
races)
    run races 560 "$python" -m pytest -q -m gpu plugins/tfkit-fused/tests/test_races.py
    ;;
tune) # before `speed` and `auto`, on the same machine, which then have the tiles that were found
    run tune 560 "$python" -m tfkit_fused tune
    run tuned 20 "$python" -m tfkit_fused show
    ;;
speed)
    run attention 400 "$python" -m tfkit bench attention --device cuda --dtype bfloat16 --budget 360 \
        --backends eager,sdpa,cudnn,fused,fused.atomic --json "$out/attention_cuda.json" --html "$out/attention_cuda.html"
    run flex 150 "$python" -m tfkit bench attention --device cuda --dtype bfloat16 --budget 120 --backends sdpa,flex \
        --cells 'dense*,causal*' --json "$out/attention_cuda_flex.json"
    ;;
auto)
    run auto 560 "$python" -m tfkit bench auto --device cuda --backends sdpa,fused,cudnn --dtype bfloat16 \
        --lengths 512,4096 --json "$out/auto_cuda.json"
    ;;
*)
    echo "stages: proof races tune speed auto" >&2
    exit 2
    ;;
esac
exit $failed

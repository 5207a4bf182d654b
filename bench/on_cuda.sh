#!/usr/bin/env bash
# What is proven on a CUDA device, and attention measured, in stages of at most ten minutes; reports and logs go to OUT.
#
#     bench/on_cuda.sh kernels|models|timed|races|tune|speed|auto OUT
#     bench/on_cuda.sh conformance OUT fused|fused.atomic|cudnn DTYPE
#
# Run from the root of a source tree in which tfkit and the plugins are installed (`tfkit plugins` lists them), and their tests can
# be imported. A stage goes on after what fails in it, and ends with the number of its commands that failed. What runs too long is
# interrupted, and still writes what it has found. WORKERS is the number of processes that compile and test at once.
set -uo pipefail
stage=$1 out=$2 failed=0
python=${PYTHON:-python}
processors=$(nproc)
workers=${WORKERS:-$((processors > 3 ? processors - 2 : 1))}
mkdir -p "$out"
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # cuBLAS is deterministic with it, and torch warns without

parallel=()
if "$python" -c "import xdist" 2> /dev/null; then parallel=(-n "$workers"); fi

run() { # run NAME SECONDS COMMAND...: its output goes to OUT/NAME.txt
    local name=$1 seconds=$2
    shift 2
    timeout --signal INT --kill-after 15 "$seconds" "$@" > "$out/$name.txt" 2>&1
    local code=$?
    echo "$name: exit code $code; $(tail -n 1 "$out/$name.txt")"
    [ $code -eq 0 ] || failed=$((failed + 1))
}

tests() { # tests NAME SECONDS ARGUMENTS...: those that need a device, compiling at once
    local name=$1 seconds=$2
    shift 2
    run "$name" "$seconds" env OMP_NUM_THREADS=1 "$python" -m pytest -v -m gpu --durations 10 "$@"
}

case $stage in
kernels) # some thousand compilations
    tests kernels 570 "${parallel[@]}" plugins/tfkit-fused --ignore plugins/tfkit-fused/tests/test_races.py
    ;;
models) # without what compiles or plans every call anew: flex takes hours, cudnn has its own stage, and clocks want to be alone
    conformant=tests/builtin/attention/test_conformance.py::test_it_is_conformant_on_cuda
    mapfile -t files < <(grep -rl --include "*.py" "mark.gpu" tests)
    tests models 570 "${parallel[@]}" "${files[@]}" --deselect "$conformant[flex]" --deselect "$conformant[cudnn]" \
        --deselect tests/bench/test_run.py::test_a_run_on_the_device
    ;;
timed)
    tests timed 570 tests/bench/test_run.py
    ;;
conformance)
    backend=$3 dtype=$4 ahead=0
    if [ "${backend%.*}" = fused ]; then
        ahead=300
        run "ahead_$backend" $ahead "$python" bench/compiled_ahead.py "$backend" --dtypes "$dtype" --workers "$workers"
    fi
    run "conformance_$backend" $((565 - ahead)) "$python" -m tfkit conformance "$backend" --device cuda --profile quick \
        --dtype "$dtype" --limit 200 --json "$out/conformance_$backend.json"
    ;;
races)
    tests races 570 "${parallel[@]}" plugins/tfkit-fused/tests/test_races.py
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
    run auto 570 "$python" -m tfkit bench auto --device cuda --backends sdpa,fused,cudnn --dtype bfloat16 --budget 520 \
        --lengths 512,4096 --json "$out/auto_cuda.json"
    ;;
*)
    echo "stages: kernels models timed conformance races tune speed auto" >&2
    exit 2
    ;;
esac
exit $failed

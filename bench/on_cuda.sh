#!/usr/bin/env bash
# What is proven on a CUDA device, and attention measured, in stages of at most ten minutes; reports and logs go to OUT.
#
#     bench/on_cuda.sh all OUT [--dry-run]
#     bench/on_cuda.sh carried|proofs|kernels|models|timed|races|tune|speed|steps|auto OUT [--dry-run]
#     bench/on_cuda.sh conformance OUT fused|fused.atomic|cudnn DTYPE [--dry-run]
#     bench/on_cuda.sh fill OUT CAPABILITY [--dry-run]
#
# `all` is a first run on a device in at most 12 minutes: proofs of all backends and models side by side, then speed alone, whole models,
# the table of `auto`, and last the sizes of tiles. Carry the kernels (`fill`), or it proves less in its time.
# A stage that ended leaves OUT/STAGE.done and is not run again, so the same command goes on after an interruption. --dry-run
# prints the commands with their limits in seconds, and runs none.
#
# `fill` needs no device: it compiles the kernels of the first stages on a CPU for a device of that compute capability (9.0 is an
# H100) and packs them in OUT/triton.tar.xz. Carried to the device in OUT, they are unpacked and checked by `all`, and used by
# every stage, which says how many kernels it had to compile all the same.
#
# Run from the root of a source tree in which tfkit and the plugins are installed (`tfkit plugins` lists them), and their tests
# can be imported. A stage goes on after what fails in it, and ends with the number of its commands that failed. What runs too
# long is interrupted, and still writes what it has found. WORKERS is the number of processes that compile and test at once.
set -uo pipefail
dry=no words=()
for word in "$@"; do if [ "$word" = --dry-run ]; then dry=yes; else words+=("$word"); fi; done
set -- "${words[@]}"
if [ $# -lt 2 ]; then
    echo "usage: bench/on_cuda.sh STAGE OUT [--dry-run]; the head of this file lists the stages" >&2
    exit 2
fi
stage=$1 out=$2 failed=0
python=${PYTHON:-python}
processors=$(nproc)
workers=${WORKERS:-$((processors > 3 ? processors - 2 : 1))}
mkdir -p "$out"
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # cuBLAS is deterministic with it, and torch warns without

cache=$out/triton # what `fill` made is used where it is there
if [ $dry = no ] && [ "$stage" != fill ] && [ -e "$cache.tar.xz" ] && [ ! -e "$cache" ]; then
    mkdir "$cache.part" && tar xJf "$cache.tar.xz" -C "$cache.part" --strip-components 1 && mv "$cache.part" "$cache"
fi
if [ -e "$cache/filled.json" ]; then
    TRITON_CACHE_DIR=$(realpath "$cache")
    export TRITON_CACHE_DIR TRITON_DISABLE_LINE_INFO=1 # the second is part of Triton's keys, see bench/kernel_cache.py
fi

kernels() { find "${TRITON_CACHE_DIR:-$HOME/.triton/cache}" -maxdepth 2 -name '__grp__*' 2> /dev/null | wc -l; }

parallel=()
if "$python" -c "import xdist" > /dev/null 2>&1; then parallel=(-n "$workers"); fi

run() { # run NAME SECONDS COMMAND...: its output goes to OUT/NAME.txt
    local name=$1 seconds=$2
    shift 2
    if [ $dry = yes ]; then
        echo "$name: at most $seconds s: $*"
        return
    fi
    local before code
    before=$(kernels)
    timeout --signal INT --kill-after 15 "$seconds" "$@" > "$out/$name.txt" 2>&1
    code=$?
    echo "$name: exit code $code; $(tail -n 1 "$out/$name.txt"); $(($(kernels) - before)) kernels compiled"
    [ $code -eq 0 ] || failed=$((failed + 1))
}

tests() { # tests NAME SECONDS ARGUMENTS...: those that need a device, compiling at once
    local name=$1 seconds=$2
    shift 2
    run "$name" "$seconds" env OMP_NUM_THREADS=1 "$python" -m pytest -v -m gpu --durations 10 "$@"
}

side_by_side() { # side_by_side COMMAND...: beside the others; `wait_for_all` counts what failed
    if [ $dry = yes ]; then "$@"; else (failed=0; "$@"; exit $failed) & fi
}

wait_for_all() {
    local job
    for job in $(jobs -p); do wait "$job" || failed=$((failed + 1)); done
}

run_all() { # each stage in a process of its own, with its share of the 12 minutes
    local name=$1 seconds=$2
    shift 2
    if [ -e "$out/$name.done" ]; then
        echo "$name: done before"
        return
    fi
    local flag=()
    if [ $dry = yes ]; then flag=(--dry-run); fi
    LIMIT=$seconds bash "$0" "$@" "${flag[@]}"
    failed=$((failed + $?))
    if [ $dry = no ]; then touch "$out/$name.done"; fi
}

models() { # without what compiles or plans every call anew: flex takes hours, cudnn has its own stage, and clocks want to be alone
    local files conformant=tests/builtin/attention/test_conformance.py::test_it_is_conformant_on_cuda
    mapfile -t files < <(grep -rl --include "*.py" "mark.gpu" tests)
    tests models "$(limit 570)" "${parallel[@]}" "${files[@]}" --deselect "$conformant[flex]" --deselect "$conformant[cudnn]"
}

limit() { # limit SECONDS: so many, or LIMIT where it is less
    local seconds=$1
    echo $((${LIMIT:-$seconds} < seconds ? LIMIT : seconds))
}

case $stage in
fill)
    if [ $# -lt 3 ]; then
        echo "usage: bench/on_cuda.sh fill OUT CAPABILITY, such as 9.0" >&2
        exit 2
    fi
    run fill "${LIMIT:-7200}" "$python" bench/kernel_cache.py fill "$cache" --capability "$3" --workers "${WORKERS:-$processors}"
    run packed 600 tar cJf "$cache.tar.xz" -C "$out" triton
    ;;
carried)
    run carried "$(limit 60)" "$python" bench/kernel_cache.py check "$cache"
    ;;
all)
    if [ -e "$cache.tar.xz" ] || [ -e "$cache/filled.json" ]; then run_all carried 45 carried "$out"; fi
    run_all proofs 150 proofs "$out"
    run_all speed 90 speed "$out"
    run_all steps 90 steps "$out"
    run_all auto 140 auto "$out"
    run_all tune 165 tune "$out"
    ;;
kernels) # some thousand compilations
    tests kernels "$(limit 570)" "${parallel[@]}" plugins/tfkit-fused --ignore plugins/tfkit-fused/tests/test_races.py
    ;;
models)
    models
    ;;
timed)
    tests timed "$(limit 570)" plugins/tfkit-conformance/tests/bench/test_run.py
    ;;
proofs) # no clock counts here, so that all may share the device
    whole=$(limit 565)
    for backend in fused fused.atomic cudnn sdpa; do
        side_by_side run "conformance_$backend" "$whole" "$python" -m tfkit conformance "$backend" --device cuda --profile quick \
            --dtype bfloat16 --json "$out/conformance_$backend.json"
    done
    workers=$((workers > 5 ? workers - 4 : 1))
    if [ ${#parallel[@]} -gt 0 ]; then parallel=(-n "$workers"); fi
    side_by_side models
    wait_for_all
    ;;
conformance)
    if [ $# -lt 4 ]; then
        echo "usage: bench/on_cuda.sh conformance OUT BACKEND DTYPE" >&2
        exit 2
    fi
    backend=$3 dtype=$4 ahead=0 whole=$(limit 565)
    if [ "${backend%.*}" = fused ]; then
        ahead=$((whole / 2))
        run "ahead_$backend" $ahead "$python" bench/compiled_ahead.py "$backend" --dtypes "$dtype" --workers "$workers"
    fi
    run "conformance_$backend" $((whole - ahead)) "$python" -m tfkit conformance "$backend" --device cuda --profile quick \
        --dtype "$dtype" --limit 200 --json "$out/conformance_$backend.json"
    ;;
races)
    tests races "$(limit 570)" "${parallel[@]}" plugins/tfkit-fused/tests/test_races.py
    ;;
tune) # before `speed` and `auto`, on the same machine, which then have the tiles that were found
    whole=$(limit 580)
    run tune $((whole - 20)) "$python" -m tfkit_fused tune
    run tuned 20 "$python" -m tfkit_fused show
    ;;
speed)
    whole=$(limit 550) # 8 and 3 parts of 11, of which the measurements take 7 and 2
    run attention $((whole * 8 / 11)) "$python" -m tfkit bench attention --device cuda --dtype bfloat16 \
        --budget $((whole * 7 / 11)) --backends eager,sdpa,cudnn,fused,fused.atomic --json "$out/attention_cuda.json" --html "$out/attention_cuda.html"
    run flex $((whole * 3 / 11)) "$python" -m tfkit bench attention --device cuda --dtype bfloat16 \
        --budget $((whole * 2 / 11)) --backends sdpa,flex --cells 'dense*,causal*' --json "$out/attention_cuda_flex.json"
    ;;
steps) # of decoding and training, with and without CUDA graphs
    run steps "$(limit 300)" "$python" bench/recorded.py --json "$out/steps"
    ;;
auto)
    whole=$(limit 570)
    run auto "$whole" "$python" -m tfkit bench auto --device cuda --backends sdpa,fused,cudnn --dtype bfloat16 \
        --budget $((whole - 40)) --lengths 512,4096 --json "$out/auto_cuda.json"
    ;;
*)
    echo "stages: all fill carried proofs kernels models timed conformance races tune speed steps auto" >&2
    exit 2
    ;;
esac
exit $failed

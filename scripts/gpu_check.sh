#!/bin/sh
# What only a GPU can show, in under six minutes: sh scripts/gpu_check.sh [FOLDER]
# Tests first, then what a step costs there; a log of each lies in FOLDER (by default build/gpu). PYTHON names the interpreter.
# Nothing is installed: torch finds a GPU, and pytest is there, or it ends with what is missing. Opacus is compared if it is.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${1:-build/gpu}
mkdir -p "$out"
PYTHONPATH=$PWD:$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH OMP_NUM_THREADS=2 PYTHONUNBUFFERED=1

"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || { echo 'torch finds no GPU here'; exit 2; }
"$python" -c 'import pytest, hypothesis, typer, dp_accounting' || exit 2
peers=--peers
others=
"$python" -c 'import opacus' 2>/dev/null || { peers=; others='--without ghost hooks'; }

failed=0
shown() { # NAME SECONDS COMMAND...
    name=$1 seconds=$2
    shift 2
    echo "== $name"
    timeout "$seconds" "$@" >"$out/$name.log" 2>&1 || { failed=1; echo "$name: ended with $?"; }
    tail -n 30 "$out/$name.log"
}

shown tests 150 "$python" -m pytest -q -m '' -p no:cacheprovider tests/dpltm/test_cuda.py tests/cli/test_cuda.py \
    tests/dpltm/randomness/test_gaussian_on_device.py tests/dpltm/gradients/test_full_precision.py \
    tests/dpltm/training/test_bfloat16.py
shown noise 40 "$python" benchmarks/noise.py --device cuda
for network in mlp cnn wide; do
    shown "step-$network" 40 "$python" benchmarks/training_step.py --device cuda --network $network --repeat 5 $peers
done
shown networks 100 "$python" benchmarks/networks.py --device cuda --threads 2 --networks resnet20 vit bert lstm $others
shown bfloat16 40 "$python" benchmarks/networks.py --device cuda --threads 2 --networks resnet20 vit --precision bfloat16 \
    --without '10 %' ghost hooks
exit $failed

#!/bin/sh
# Runs the tests as another, slower processor would: plain kernels (no AVX, no FMA), one thread, interrupts ignored as under
# nohup, and QUOTA per cent of one processor where this system can set a quota. What holds here holds on more than the
# processor that it was written on.
#
#   sh scripts/other_processors.sh [ARGUMENTS OF PYTEST]     QUOTA=none runs at full speed (default 25)
#
# A quota comes from cpulimit, a control group (version 1 or 2, takes root), or systemd-run, whichever is there.
set -u
cd "$(dirname "$0")/.." || exit 1

quota=${QUOTA:-25}
group=

fail() {
    printf 'other_processors: %s\n' "$1" >&2
    exit 1
}

case $quota in
    none) ;;
    '' | *[!0-9]* | 0*) fail "QUOTA: '$quota' is not a number of per cent of a processor; take 25, or none" ;;
esac

# Makes a control group whose processes share the quota; fails where that is not permitted.
make_group() {
    for parent in /sys/fs/cgroup /sys/fs/cgroup/cpu /sys/fs/cgroup/cpu,cpuacct; do
        mkdir "$parent/dpltm-tests-$$" 2>/dev/null || continue
        group=$parent/dpltm-tests-$$
        # each 100 ms: at 25 %, 25 ms of work and 75 ms of waiting
        if [ -f "$group/cpu.max" ]; then
            { echo "$((quota * 1000)) 100000" >"$group/cpu.max"; } 2>/dev/null && return
        elif [ -f "$group/cpu.cfs_quota_us" ]; then
            { echo 100000 >"$group/cpu.cfs_period_us" && echo "$((quota * 1000))" >"$group/cpu.cfs_quota_us"; } 2>/dev/null && return
        fi
        rmdir "$group"
        group=
    done
    return 1
}

# The group goes once nothing is left in it; where the tests were stopped, what they had started ends here.
tidy() {
    [ -n "$group" ] || return
    for attempt in 1 2 3 4 5; do
        rmdir "$group" 2>/dev/null && return
        while read -r pid; do
            kill -KILL "$pid" 2>/dev/null
        done <"$group/cgroup.procs"
        sleep "$attempt"
    done
}
trap tidy EXIT

limit=
if [ "$quota" = none ]; then
    how='at full speed'
elif make_group; then
    how="at $quota % of a processor (a control group)"
elif systemd-run --user --scope --quiet -p "CPUQuota=$quota%" true 2>/dev/null; then
    limit="systemd-run --user --scope --quiet -p CPUQuota=$quota%"
    how="at $quota % of a processor (systemd-run)"
elif command -v cpulimit >/dev/null; then
    limit="cpulimit --include-children --limit=$quota --"
    how="at $quota % of a processor (cpulimit)"
else
    how='at full speed: no quota can be set here (run it as root, or install cpulimit)'
fi

pytest=${PYTEST:-.venv/bin/pytest}
command -v "$pytest" >/dev/null || fail "$pytest was not found: run make test-elsewhere, which sets it up"

# Whose kernels are chosen by processor: PyTorch's own, MKL, oneDNN, OpenBLAS, the C library's mathematics, NumPy.
# Variables that a library or an architecture does not know change nothing.
export ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
case $(uname -m) in
    x86_64 | amd64)
        export OPENBLAS_CORETYPE=NEHALEM
        export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4,-AVX512F
        ;;
esac
python=$(dirname "$(command -v "$pytest")")/python
NPY_DISABLE_CPU_FEATURES=$("$python" -c '
from numpy._core import _multiarray_umath as numpy
print(*(name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__.get(name)))') && export NPY_DISABLE_CPU_FEATURES

echo "plain kernels, one thread, interrupts ignored, $how; stop it with Ctrl-C" >&2
(
    [ -z "$group" ] || sh -c 'echo "$PPID"' >"$group/cgroup.procs" || exit 1
    trap '' INT HUP
    # shellcheck disable=SC2086 # several words, or none
    exec $limit "$pytest" -n 1 --dist loadfile "$@"
) &
child=$!
trap 'kill "$child" 2>/dev/null' INT TERM HUP
wait "$child"
status=$?
# a signal ends the first wait before the tests have ended
wait "$child" 2>/dev/null
exit "$status"

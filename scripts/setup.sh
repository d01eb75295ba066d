#!/bin/sh
# Makes .venv and installs dpltm into it, editable, at the versions of constraints.txt.
#
#   sh scripts/setup.sh run|test|dev      PYTHON=... names the interpreter (default python3)
#
# A stamp in .venv holds what was installed from where; where it still holds, nothing is done. The stamp is written
# last, and an environment that was being changed when the set-up was cut off is made anew, so a half-made .venv
# never passes for a finished one. Every failure is one line on standard error and exit status 1.
set -u
cd "$(dirname "$0")/.." || exit 1

python=${PYTHON:-python3}
venv=.venv
unfinished=$venv/.dpltm-unfinished
log=build/setup.log
fresh=no # whether this call made .venv, and so may throw it away

fail() {
    printf 'dpltm setup: %s\n' "$1" >&2
    exit 1
}

# What an up-to-date environment was made from: the place, and the files that decide what is installed.
fingerprint() {
    pwd -P
    cksum pyproject.toml constraints.txt scripts/setup.sh
}

up_to_date() {
    [ ! -e "$unfinished" ] && [ -f "$venv/.dpltm-$1" ] && [ "$(cat "$venv/.dpltm-$1")" = "$(fingerprint)" ] &&
        "$venv/bin/python" -I -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("dpltm") is None)' \
            2>/dev/null
}

# MAJOR.MINOR of an interpreter, or nothing where it does not run.
version_of() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null | sed -n 's/^[^0-9]*\([0-9]*\.[0-9]*\).*/\1/p'
}

new_enough() {
    case $1 in
        3.[0-9] | 3.10 | [0-2].* | '') return 1 ;;
    esac
}

newer_python_hint() {
    for candidate in python3.11 python3.12 python3.13 python3.14; do
        if new_enough "$(version_of "$candidate")"; then
            echo "run make again with PYTHON=$candidate"
            return
        fi
    done
    echo "install Python 3.11 or newer, or name one with make PYTHON=..."
}

check_python() {
    command -v "$python" >/dev/null 2>&1 || fail "$python was not found: $(newer_python_hint)"
    version=$(version_of "$python")
    [ -n "$version" ] || fail "$python does not run: $(newer_python_hint)"
    new_enough "$version" || fail "$python is Python $version, dpltm needs 3.11 or newer: $(newer_python_hint)"
    "$python" -c 'import venv, ensurepip' 2>/dev/null || fail \
        "$python has no venv module: install it (on Debian or Ubuntu: apt install python$version-venv) and run make again"
}

usable() {
    [ ! -e "$unfinished" ] && new_enough "$(version_of "$venv/bin/python")" &&
        "$venv/bin/python" -I -m pip --version >/dev/null 2>&1 &&
        # a folder that was moved keeps the old place in its scripts
        [ "$("$venv/bin/python" -I -c 'import sys; print(sys.prefix)')" = "$(pwd -P)/$venv" ] &&
        grep -qsF "$(pwd -P)/$venv/bin/" "$venv/bin/pip"
}

make_venv() {
    check_python
    if [ -e "$venv" ] || [ -L "$venv" ]; then
        echo "the virtual environment in $venv is unfinished, moved or unusable: making it anew" >&2
        rm -rf "$venv"
    fi
    fresh=yes
    mkdir "$venv" && : >"$unfinished" || exit 1
    "$python" -m venv "$venv" >"$log" 2>&1 || fail "$python could not make $venv: $(first_error) (all of it: $log)"
}

first_error() {
    sed -n -E 's/^ *(ERROR|[Ee]rror): *//p' "$log" | head -n 1 | grep . || tail -n 1 "$log"
}

# One line that says why pip failed, from what it printed.
pip_trouble() {
    missing=$(sed -n -E -e 's/^ERROR: (No matching distribution found for|Could not find a version that satisfies the requirement) ([^ ]+).*/\2/p' \
        -e 's/^ *The user requested \(constraint\) //p' "$log" | head -n 1)
    if grep -q 'No space left on device' "$log"; then
        echo "the disk is full: free some space (torch alone takes about 1 GB) and run make again"
    elif grep -qE 'onnection (broken|refused|error|aborted)|NewConnection|NameResolution|name resolution|Timeout|timed out|Max retries|ProxyError|SSLError|unreachable|IncompleteRead' "$log"; then
        echo "pip could not reach a package index: check the network and pip's index and proxy settings (pip config list), then run make again"
    elif [ -n "$missing" ]; then
        echo "pip found no $missing that suits Python $(version_of "$venv/bin/python") and constraints.txt: check pip's index settings (pip config list, PIP_NO_INDEX), or try another interpreter with make PYTHON=..."
    else
        echo "pip failed: $(first_error)"
    fi
}

install() {
    "$venv/bin/python" -I -m pip install --progress-bar off --disable-pip-version-check --no-input --retries 3 \
        -c constraints.txt "$@" >"$log" 2>&1
}

tidy() {
    status=$?
    trap - EXIT
    [ "$status" -eq 0 ] || [ "$fresh" = no ] || rm -rf "$venv"
    exit "$status"
}

case ${1:-} in
    run) extras='' levels='run' ;;
    test) extras='[test]' levels='run test' ;;
    dev) extras='[test,dev]' levels='run test dev' ;;
    *) fail "expected run, test or dev, not '${1:-}'" ;;
esac
up_to_date "$1" && exit 0

trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p build || exit 1
usable || make_venv
rm -f "$venv"/.dpltm-run "$venv"/.dpltm-test "$venv"/.dpltm-dev

echo "installing dpltm and its dependencies into $venv (about a minute the first time)" >&2
: >"$unfinished" || exit 1
# The pinned setuptools goes first and builds dpltm: an isolated build would fetch one that no constraint holds.
if ! install "$(grep '^setuptools==' constraints.txt)" || ! install --no-build-isolation -e ".$extras"; then
    rm -f "$unfinished" # pip changes nothing before it has everything
    fail "$(pip_trouble) (all of pip's output: $log)"
fi
for level in $levels; do
    fingerprint >"$venv/.dpltm-$level" || exit 1
done
rm -f "$unfinished"

#!/bin/sh
# mypy on the package as it is installed: dpltm.tickets and dpltm.cli exist only there. The wheel is built from a copy,
# so that nothing stale from an earlier build gets in and nothing is left in the tree.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir "$work/source"
cp -R pyproject.toml README.md LICENSE dpltm tickets cli "$work/source"
"$root/.venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
    --no-build-isolation --target "$work/site" "$work/source"

echo 'mypy -p dpltm (the installed package)'
cd "$work/site"
status=0
MYPYPATH=$work/site "$root/.venv/bin/mypy" --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" \
    -p dpltm >"$work/report" || status=$?
# name the files as they are in the repository
sed -E 's#^dpltm/(tickets|cli)/#\1/#' "$work/report"
exit "$status"

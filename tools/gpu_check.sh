#!/usr/bin/env bash
# The tests for a GPU, on a machine that has one, and CuPy, but no network: the tests, the kernels under
# compute-sanitizer where the machine has it, the benchmark. What they say is kept under docs/gpu/.
#
#     tools/gpu_check.sh FOLDER [pytest's arguments]
#
# FOLDER holds wheels: of ctcbind (or of setuptools, cffi and NumPy, to build it here), and of cffi, NumPy, ml_dtypes and
# pytest with what they need, as far as the machine's own Python lacks them; a wheel of nvidia-cudnn, or a libcudnn.so.9
# with its parts, unless the machine has a cuDNN; a libwarpctc.so that was built with CUDA, if warp-ctc is to be tested
# on the device. See docs/gpu/README.md. PYTHON names the interpreter, which must see CuPy. PARTS="tests sanitizer
# benchmark" names what is done, for machines on which a command may not take as long as all three.
set -euo pipefail

if [ $# -lt 1 ] || [ ! -d "$1" ]; then
    echo "usage: tools/gpu_check.sh FOLDER [pytest's arguments]   (FOLDER holds wheels and libraries)" >&2
    exit 2
fi
PARTS=${PARTS:-tests sanitizer benchmark}
for part in $PARTS; do
    case $part in tests | sanitizer | benchmark) ;; *) echo "no such part: $part" >&2 && exit 2 ;; esac
done
asked() { [[ " $PARTS " == *" $1 "* ]]; }
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
checkout=$PWD
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

python=${PYTHON:-python3}
"$python" -m venv --without-pip "$room/venv" # where there is no ensurepip; pip is the machine's
# what the interpreter sees, wherever it has it from (its own environment, the system, the user's folder)
"$python" -c 'import sys; print("\n".join(p for p in sys.path if p.endswith(("site-packages", "dist-packages"))))' \
    > "$(echo "$room"/venv/lib/python*/site-packages)/machine.pth"
PATH="$room/venv/bin:$PATH"
install() { python -m pip install --quiet --disable-pip-version-check --no-index --find-links "$folder" "$@"; }
have() { compgen -G "$folder/$1" > /dev/null; }

if have 'ctcbind-*.whl'; then install --force-reinstall --no-deps ctcbind; else install --no-deps "$checkout"; fi
install cffi numpy pytest ml_dtypes
if have 'nvidia_cudnn_*.whl'; then
    install --no-deps "$folder"/nvidia_cudnn_*.whl
elif [ -z "${CTCBIND_CUDNN:-}" ] && have 'libcudnn.so.*'; then
    export CTCBIND_CUDNN=$folder
fi

if [ -z "${CTCBIND_WARPCTC:-}" ] && have 'libwarpctc.so'; then
    export CTCBIND_WARPCTC=$folder/libwarpctc.so
fi

# The tests of the checkout, the package that was installed: from another folder, so that the one is not the other
cp -r tests examples tools docs benchmarks README.md pyproject.toml build_ffi.py "$room/"
cd "$room"
device=$(python -c '
import re, cupy
name = cupy.cuda.runtime.getDeviceProperties(0)["name"]
print(re.sub(r"[^a-z0-9]+", "-", (name.decode() if isinstance(name, bytes) else name).lower()).strip("-"))')
out="$checkout/docs/gpu/$(date -u +%Y-%m-%d)-$device"
if [ -e "$out" ]; then out="$out-$(date -u +%H%M%S)"; fi
mkdir -p "$out"
# no path of this machine is worth keeping
keep() {
    sed -u -E -e "s|$room|ROOM|g" -e "s|$folder|FOLDER|g" -e "s|$checkout|CHECKOUT|g" \
        -e 's#/[^ "]*/(site|dist)-packages#PACKAGES#g' | tee "$out/$1"
}

{
    echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
    echo "checkout: $(git -C "$checkout" describe --always --dirty 2> /dev/null || echo unknown)"
    python -c '
import platform, cupy, ctcbind, numpy
runtime = cupy.cuda.runtime
for number in range(runtime.getDeviceCount()):
    properties = runtime.getDeviceProperties(number)
    name = properties["name"]
    name = name.decode() if isinstance(name, bytes) else name
    print(f"device {number}: {name}, compute capability {properties['"'major'"']}.{properties['"'minor'"']}")
print(f"CUDA: driver {runtime.driverGetVersion()}, runtime {runtime.runtimeGetVersion()}")
print(f"Python {platform.python_version()}, NumPy {numpy.__version__}, CuPy {cupy.__version__}")
print(f"ctcbind {ctcbind.__version__}, cuDNN {ctcbind.engines()['"'cudnn'"'].version}")'
    cat /proc/driver/nvidia/version 2> /dev/null || true
} 2>&1 | keep machine.txt

ctcbind doctor 2>&1 | keep doctor.txt || true
ctcbind compare 2>&1 | keep compare.txt || true
status=0
# The files that hold tests for a GPU: the others import what is not here, and PyTorch, which brings a cuDNN of its own.
files=(tests/gpu tests/test_{bad_input,compare,compare_peers,cudnn_contract,engines_agree,examples,explain,extremes,meaning,plan,same_bits,vectors}.py)
if python -c 'import PIL' 2> /dev/null; then files+=(tests/test_reader.py); fi
if asked tests; then
    python -m pytest -m gpu -p no:cacheprovider -p no:benchmark --gpu-record "$out" "$@" "${files[@]}" 2>&1 | keep pytest.txt || status=$?
fi

# a sanitizer's own status is 0 whatever it finds, unless told otherwise
sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
if asked sanitizer && [ -x "$sanitizer" ]; then
    kernels=(tests/gpu/test_device_{labels,rows}.py
        -k "small_batches and cuda or out_of_range and cuda or edges or in_the_place or few_classes")
    # what CuPy compiles once it keeps: not under a sanitizer, where compiling takes far longer
    python -m pytest -q -m gpu -p no:cacheprovider -p no:benchmark "${kernels[@]}" 2>&1 | keep unwatched.txt || status=$?
    for tool in memcheck racecheck synccheck; do
        "$sanitizer" --tool "$tool" --error-exitcode 9 \
            python -m pytest -q -m gpu -p no:cacheprovider -p no:benchmark "${kernels[@]}" 2>&1 | keep "$tool.txt" || status=$?
    done
elif asked sanitizer; then
    echo "compute-sanitizer was not found: none of its tools was run" | keep sanitizer.txt
fi

if asked benchmark; then
    python -m benchmarks gpu --json "$out/benchmark.json" 2>&1 | keep benchmark.md || status=$?
fi
echo "kept in ${out#"$checkout/"}"
exit "$status"

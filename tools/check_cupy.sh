#!/usr/bin/env bash
# The tests for a GPU on the real CuPy, without a GPU: over a CUDA and a libcudnn on host memory (tests/fake_cuda,
# tests/fake_cudnn). It shows that CuPy takes what it is given, and that nothing relies on an order of streams that CUDA
# does not promise; what cuDNN computes, and time, it does not show.
#
#     tools/check_cupy.sh [pytest's arguments]
#
# It needs x86-64, g++ and a network, and takes some ten minutes. CUPY names the wheel (cupy-cuda12x==14.2.0), PYTHON
# the interpreter, and ROOM a folder that is kept for the next time (else one that is removed).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
checkout=$PWD
if [ -n "${ROOM:-}" ]; then
    mkdir -p "$ROOM"
    room=$(cd "$ROOM" && pwd)
else
    room=$(mktemp -d)
    trap 'rm -rf "$room"' EXIT
fi

"${PYTHON:-python3}" -m venv "$room/venv"
PATH="$room/venv/bin:$PATH"
pip install --quiet --disable-pip-version-check "${CUPY:-cupy-cuda12x==14.2.0}" pytest ml_dtypes "$checkout"
pip install --quiet --disable-pip-version-check --no-deps \
    'nvidia-cuda-runtime-cu12==12.9.*' 'nvidia-cuda-nvcc-cu12==12.9.*' 'nvidia-cuda-cccl-cu12==12.9.*'
headers=$(python -c 'import nvidia; print(list(nvidia.__path__)[0])')

mkdir -p "$room/libraries" "$room/run" "$room/kernels"
cd "$room/libraries"
g++ -std=c++17 -O1 -g -Wall -Wextra -fPIC -shared -fvisibility=hidden \
    -I"$headers/cuda_runtime/include" -I"$headers/cuda_nvcc/include" \
    "$checkout"/tests/fake_cuda/*.cpp -o libcuda.so.1 -ldl
ln -sf libcuda.so.1 libnvrtc.so.12
gcc -std=c11 -O1 -g -Wall -Wextra -fPIC -shared -fvisibility=hidden -DFAKE_CUDA \
    "$checkout"/tests/fake_cudnn/*.c -o fake_cudnn.so "$PWD/libcuda.so.1" -lm -ldl -lpthread

export FAKE_CUDA=1 FAKE_CUDA_HEADERS="$headers" FAKE_CUDA_CACHE="$room/kernels" \
    FAKE_CUDA_COMPILE="$checkout/tests/fake_cuda/compile.py" CUPY_CACHE_DIR="$room/cupy" CUPY_ACCELERATORS= \
    LD_LIBRARY_PATH="$room/libraries" PYTHONPATH="$checkout/tests/fake_cuda" \
    CTCBIND_CUDNN="$room/libraries/fake_cudnn.so"
cd "$room/run"
tests=$checkout/tests
check() { python -m pytest -q -m gpu -p no:cacheprovider "$@"; }
python -c 'import cupy; print("CuPy", cupy.__version__, "on", cupy.cuda.runtime.getDeviceCount(), "devices")'
CTCBIND_GPU_DRY=1 check "$tests/gpu" \
    "$tests"/test_{bad_input,compare,cudnn_contract,engines_agree,examples,explain,extremes,meaning,plan,same_bits,vectors}.py "$@"
if [ $# -eq 0 ]; then # where a stand-in's graphs do nothing, these would be left out
    check "$tests"/gpu/test_device_{labels,modes}.py -k capture
fi

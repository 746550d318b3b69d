#!/usr/bin/env bash
# The native engine for AArch64, compiled here and run under QEMU's user emulation: NEON and plain C on the problems of
# tests/csrc, held against the installed ctcbind. Needs the environment in which ctcbind is installed, and on Debian
#     apt-get install gcc-aarch64-linux-gnu qemu-user-static
# AARCH64_CC and QEMU name others (a compiler with arguments too: AARCH64_CC="zig cc -target aarch64-linux-musl").
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
compiler=${AARCH64_CC:-aarch64-linux-gnu-gcc}
qemu=${QEMU:-qemu-aarch64-static}
for program in ${compiler%% *} "$qemu"; do
    if ! command -v "$program" > /dev/null; then
        echo "there is no $program here: apt-get install gcc-aarch64-linux-gnu qemu-user-static" >&2
        exit 2
    fi
done
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

# shellcheck disable=SC2086 # the compiler may carry arguments
$compiler -std=c11 -O3 -fno-math-errno -fno-trapping-math -pthread -static -Wall -Wextra -Werror -Icsrc \
    csrc/*.c tests/csrc/driver.c -o "$room/driver" -lm
python tests/csrc/problems.py write "$room/problems"
for isa in neon scalar; do
    CTCBIND_ISA=$isa "$qemu" "$room/driver" "$room/problems" "$room/results"
    python tests/csrc/problems.py compare "$room/problems" "$room/results"
done

#!/usr/bin/env bash
# Fuzzes the native engine under AddressSanitizer and UndefinedBehaviorSanitizer: tools/fuzz.sh [seconds] [folder]
# Each instruction set that this processor has takes its share of the seconds (60 unless told). What is found stays in
# the folder (build/fuzz unless told); a failing input is a file crash-* there, and the built fuzzer given that file
# runs it again. CC names another clang.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
room=${2:-build/fuzz}
mkdir -p "$room/corpus"

"${CC:-clang}" -std=c11 -O2 -g -fno-omit-frame-pointer -fno-math-errno -fno-trapping-math -ffp-contract=off -pthread \
    -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Icsrc \
    csrc/*.c tests/fuzz/fuzz_ctcbind.c -o "$room/fuzz_ctcbind" -lm

sets=(scalar)
case $(uname -m) in
x86_64)
    if grep -qw avx2 /proc/cpuinfo; then sets+=(avx2); fi
    if grep -qw avx512vl /proc/cpuinfo; then sets+=(avx512); fi
    ;;
aarch64) sets+=(neon) ;;
esac
for isa in "${sets[@]}"; do
    echo "== $isa, $((seconds / ${#sets[@]} + 1)) s"
    CTCBIND_ISA=$isa "$room/fuzz_ctcbind" -max_total_time=$((seconds / ${#sets[@]} + 1)) -max_len=1024 -timeout=1200 \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="$room/" "$room/corpus" tests/fuzz/corpus
done

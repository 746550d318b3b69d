#!/usr/bin/env bash
# Fuzzes csrc/ under AddressSanitizer and UndefinedBehaviorSanitizer: tools/fuzz.sh [seconds] [folder]
# A quarter of the seconds (60 unless told) goes to what stands beside the loss, the rest to the loss, in equal shares on
# each instruction set that this processor has. Seeds are tests/fuzz/corpus; what is found stays in the folder
# (build/fuzz unless told). A failing input is a file crash-* there, and the built fuzzer given that file runs it again.
# CC names another clang. tools/fuzz.sh keep [folder] puts what the folder's inputs reach, and no more, into the seeds.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
seeds=$PWD/tests/fuzz/corpus
if [ "${1:-}" = keep ]; then
    room=${2:-build/fuzz}
    for name in ctcbind beside; do
        rm -rf "$room/kept-$name"
        mkdir -p "$room/kept-$name" "$seeds/$name"
        "$room/fuzz_$name" -merge=1 -max_len=1024 "$room/kept-$name" "$seeds/$name" "$room/corpus/$name"
        rm -rf "${seeds:?}/$name"
        mv "$room/kept-$name" "$seeds/$name"
    done
    exit
fi

seconds=${1:-60}
room=${2:-build/fuzz}
mkdir -p "$room/corpus/ctcbind" "$room/corpus/beside"

# Short samples are halved too where T is odd, small gradients written past the cache where N is; checkpoints are packed
# where L is odd, and nothing is kept beside them where C is.
for name in ctcbind beside; do
    "${CC:-clang}" '-DWORTH_HALVING=(p->T % 2 ? 0 : 60e3)' '-DWORTH_STREAMING=(p->N % 2 ? 0u : 8u << 20)' \
        '-DWORTH_PACKING=(e->L % 2 ? 0u : 1u << 20)' '-DMOST_KEPT=(p->C % 2 ? 0.0 : 448e3)' \
        -std=c11 -O2 -g -fno-omit-frame-pointer -fno-math-errno -fno-trapping-math -ffp-contract=off \
        -pthread -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Icsrc \
        csrc/*.c "tests/fuzz/fuzz_$name.c" -o "$room/fuzz_$name" -lm
done

run() { # NAME SECONDS
    "$room/fuzz_$1" -max_total_time="$2" -max_len=1024 -timeout=1200 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$room/" "$room/corpus/$1" "$seeds/$1"
}

echo "== beside the loss, $((seconds / 4 + 1)) s"
run beside $((seconds / 4 + 1))
sets=(scalar)
case $(uname -m) in
x86_64)
    if grep -qw avx2 /proc/cpuinfo; then sets+=(avx2); fi
    if grep -qw avx512vl /proc/cpuinfo; then sets+=(avx512); fi
    ;;
aarch64) sets+=(neon) ;;
esac
for isa in "${sets[@]}"; do
    echo "== the loss, $isa, $((3 * seconds / 4 / ${#sets[@]} + 1)) s"
    CTCBIND_ISA=$isa run ctcbind $((3 * seconds / 4 / ${#sets[@]} + 1))
done

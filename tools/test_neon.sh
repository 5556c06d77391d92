#!/usr/bin/env bash
# Builds the CPU optimizer and its tests for 64-bit Arm and runs them under qemu: NEON against the scalar definition, bit
# for bit. Needs Debian's g++-aarch64-linux-gnu, qemu-user, libhwy-dev and googletest (which libgtest-dev brings).
#   tools/test_neon.sh [BUILD_FOLDER] [gtest options]
# Exits 77 (skipped, for ctest) with the reason when a tool is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build/neon}
shift || true

compiler=aarch64-linux-gnu-g++
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
googletest=/usr/src/googletest
skip() {
  echo "SKIPPED: $1"
  exit 77
}
command -v $compiler >/dev/null || skip "$compiler is missing (apt-get install g++-aarch64-linux-gnu)"
[ -n "$emulator" ] || skip "qemu-aarch64 is missing (apt-get install qemu-user)"
[ -d $googletest ] || skip "$googletest is missing (apt-get install googletest)"
[ -d /usr/include/hwy ] || skip "Highway's headers are missing (apt-get install libhwy-dev)"

# Highway's headers alone: the host's other headers are for another processor. Its library is not needed, because Arm has
# one target and no dispatch.
mkdir -p "$build/include"
ln -sfn /usr/include/hwy "$build/include/hwy"
flags="-std=c++20 -O2 -ffp-contract=off -DSTRATA_WITHOUT_HWLOC -Isrc -I. -Itests -isystem $build/include -isystem $googletest/googletest/include"
sources="src/core/bytes.cpp src/core/cgroup.cpp src/core/allowed_cpus.cpp src/core/dtype.cpp src/core/shard_checks.cpp src/core/error.cpp src/core/event.cpp src/core/memory_nodes.cpp
  src/core/optimizer_config.cpp src/core/thread_pool.cpp $(echo cpu_adam/*.cpp)
  tests/core/block_codes_test.cpp tests/core/state_encodings_test.cpp tests/cpu_adam/block_kernels_test.cpp
  tests/cpu_adam/cpu_optimizer_contract_test.cpp tests/cpu_adam/isa_equality_test.cpp
  tests/cpu_adam/shard_math_test.cpp tests/cpu_adam/state_conversion_test.cpp"

# A makefile for the objects: incremental and parallel without a second configuration of the whole project.
{
  printf 'all: %s/neon_tests\n' "$build"
  objects=""
  for source in $sources $googletest/googletest/src/gtest-all.cc $googletest/googletest/src/gtest_main.cc; do
    object="$build/$(echo "$source" | tr / _).o"
    objects="$objects $object"
    printf '%s: %s\n\t@%s %s -I%s/googletest -MMD -c $< -o $@\n-include %s\n' \
      "$object" "$source" $compiler "$flags" $googletest "${object%.o}.d"
  done
  printf '%s/neon_tests: %s\n\t@%s %s -o $@ -pthread\n' "$build" "$objects" $compiler "$objects"
} > "$build/Makefile"
make -s -j "${JOBS:-2}" -f "$build/Makefile"
"$emulator" -L /usr/aarch64-linux-gnu "$build/neon_tests" --gtest_brief=1 "$@"

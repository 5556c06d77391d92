"""What the compiler says of the CUDA kernels: no spills, no local memory, 128-bit accesses. Nothing runs on a GPU.

The environment: STRATA_BUILD, a build folder that has compiled the kernels.
"""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import kernel_resources as kr  # noqa: E402


@pytest.fixture(scope="module")
def measured():
    build = os.environ.get("STRATA_BUILD")
    if not build:
        pytest.skip("STRATA_BUILD is not set: no build folder with kernels")
    return kr.measure(build, kr.find_cuobjdump())


def test_no_kernel_spills(measured):
    resources, _ = measured
    assert kr.complaints(resources, {}) == []


def test_every_architecture_has_every_kernel(measured):
    resources, _ = measured
    names = {name for _, name in resources}
    assert {arch for arch, _ in resources} == set(kr.THREADS)
    assert len(resources) == len(names) * len(kr.THREADS)
    # 3 encodings of moments, 4 storages; casts and sums of every pair; norms; codes.
    assert len([name for name in names if name.startswith("Update")]) == 12
    assert len([name for name in names if name.startswith("ConvertBody")]) == 18
    assert len([name for name in names if name.startswith("SumLanesBody")]) == 3
    assert len([name for name in names if name.startswith("SumRowsBody")]) == 3
    assert all(kr.bytes_per_parameter(name) for name in names)


def test_no_kernel_uses_local_memory_and_the_hot_ones_use_wide_accesses(measured):
    resources, sass = measured
    if not kr.find_cuobjdump():
        pytest.skip("no cuobjdump: the machine code was not looked at (it comes with triton, or set PATH)")
    assert set(sass) == set(resources)
    assert kr.complaints({}, sass) == []


PTXAS = """
ptxas info    : 384 bytes gmem
ptxas info    : Compiling entry function '_Z1a' for 'sm_90'
ptxas info    : Function properties for _Z1a
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 64 registers, used 0 barriers, 8 bytes cumulative stack size
ptxas info    : Compiling entry function '_Z1a' for 'sm_100'
ptxas info    : Function properties for _Z1a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers
"""

SASS = """
arch = sm_90
		Function : _Z1a
        /*0050*/                   LDG.E.128 R8, desc[UR8][R2.64] ;        /* 0x0000000802087981 */
        /*0060*/              @!P0 STL [R1], R8 ;                          /* 0x0000000801007387 */
"""


def test_spills_are_seen():
    found = kr.parse_ptxas(PTXAS)
    assert found == {("sm_90", "_Z1a"): (64, 8, 16), ("sm_100", "_Z1a"): (40, 0, 0)}
    assert len(kr.complaints(found, {})) == 1


def test_local_memory_and_narrow_accesses_are_seen():
    found = kr.parse_sass(SASS)
    assert found == {("sm_90", "_Z1a"): {"LDG.E.128": 1, "STL": 1}}
    mnemonics = found["sm_90", "_Z1a"]
    hot = kr.complaints({}, {("sm_90", "UpdateBody<OwnMaster, Fp32Moments>"): mnemonics})
    assert len(hot) == 2 and "STL" in hot[0] and "no STG.E.128" in hot[1]
    assert len(kr.complaints({}, {("sm_90", "SumLanesBody<F32>"): mnemonics})) == 1


def test_the_widest_array_of_a_conversion_is_accessed_wide():
    assert kr.wide_accesses("ConvertBody<Cast, F32, Bf16>") == ["STG.E.128"]
    assert kr.wide_accesses("ConvertBody<Cast, Bf16, F32>") == ["LDG.E.128"]
    assert kr.wide_accesses("ConvertBody<Accumulate, F32, Bf16>") == ["LDG.E.128", "STG.E.128"]
    assert kr.wide_accesses("ConvertBody<Cast, Bf16, Bf16>") == ["LDG.E.128", "STG.E.128"]


@pytest.mark.parametrize("registers, arch, share", [(32, "sm_90", 1), (33, "sm_90", 0.75), (64, "sm_86", 2 / 3), (255, "sm_80", 0.125)])
def test_occupancy_follows_the_registers(registers, arch, share):
    assert kr.occupancy(registers, arch) == pytest.approx(share)


def test_bytes_follow_the_encodings():
    assert kr.bytes_per_parameter("UpdateBody<WithMaster<Bf16>, Fp32Moments>") == 28
    assert kr.bytes_per_parameter("UpdateBlock8Body<WithRemainder>") == 14.0625
    assert kr.bytes_per_parameter("ConvertBody<Accumulate, F32, Bf16>") == 10
    assert kr.bytes_per_parameter("DequantizeBody<1, F32, true>") == 8.515625

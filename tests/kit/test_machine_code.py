"""Listings of machine code: loops, how often they run, and instructions by kind."""

from __future__ import annotations

import re

import pytest

from chapters.kit.gpu import machine_code
from chapters.kit.gpu.cuda_resources import compiled
from chapters.kit.gpu.machine_code import by_kind, listing, parsed
from tests.support.planted import needs_compiler

# two loops, one in the other: the outer one counts to 0x100 by 1, the inner one to 0x20 by 8
NESTED = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   HFMA2.MMA R21, -RZ, RZ, 0, 0 ;
.L_x_1:
        /*0020*/                   IMAD.MOV.U32 R9, RZ, RZ, RZ ;
        /*0030*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0040*/                   STS.128 [R7], R4 ;
        /*0050*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
.L_x_0:
        /*0060*/                   LDS.U.64 R10, [R9+0x10] ;
        /*0070*/                   IADD3 R9, R9.reuse, 0x8, RZ ;
        /*0080*/                   FFMA.FTZ R14, R10, R11, R14 ;
        /*0090*/                   FFMA.FTZ R15, R10, R11, R15 ;
        /*00a0*/                   ISETP.NE.AND P0, PT, R9, 0x20, PT ;
        /*00b0*/               @P0 BRA `(.L_x_0) ;
        /*00c0*/                   IADD3 R21, R21, 0x1, RZ ;
        /*00d0*/                   ISETP.NE.AND P1, PT, R21, 0x100, PT ;
        /*00e0*/               @P1 BRA `(.L_x_1) ;
        /*00f0*/                   STG.E desc[UR4][R2.64], R14 ;
        /*0100*/                   EXIT ;
.L_x_2:
        /*0110*/                   BRA `(.L_x_2);
        /*0120*/                   NOP;
"""


def test_loops_are_found_from_the_inside_out():
    code = parsed(NESTED)
    (inner, outer) = code.loops
    assert code.turns(*inner) == 4 and code.turns(*outer) == 256
    assert [one.opcode for one in code.used][-1] == "EXIT"  # the trap is no part of the kernel


def test_what_a_warp_executes():
    counts = by_kind(parsed(NESTED).executed())
    assert counts["float32"] == 2 * 4 * 256 and counts["load shared"] == 4 * 256
    assert counts["load global"] == counts["store shared"] == counts["wait"] == 256
    assert counts["store global"] == 1 and counts["branch"] == 4 * 256 + 256 + 1
    assert parsed(NESTED).static()["float32"] == 2


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("HFMA2.MMA R21, -RZ, RZ, 0, 0", "IMAD R21, R3, R4, R5"),  # starts from something computed
        ("R21, 0x100, PT", "R21, R8, PT"),  # ends at something computed
        ("IADD3 R21, R21, 0x1, RZ", "IADD3 R21, R21, R6, RZ"),  # counts by something computed
        ("IADD3 R21, R21, 0x1, RZ", "IADD3 R21, R21, 0x7, RZ"),  # never reaches the bound
    ],
)
def test_turns_that_cannot_be_read_are_not_guessed(was, now):
    code = parsed(NESTED.replace(was, now))
    assert code.turns(*code.loops[1]) is None and code.turns(*code.loops[0]) == 4
    assert code.executed() is None
    # a warp is known to multiply 512 times: 2 × 4 per turn, so 64 turns
    assert by_kind(code.executed(512))["load global"] == 64
    assert code.executed(513) is None  # not a whole number of turns


def test_two_loops_that_cannot_be_read_are_not_solved():
    code = parsed(NESTED.replace("0x100", "R8").replace("0x20,", "R8,"))
    assert code.executed(512) is None


@pytest.mark.parametrize(
    ("line", "kind", "wide"),
    [
        ("LDSM.16.M88.4 R4, [R2]", "load shared", 16),
        ("LDSM.16.MT88.2 R4, [R2]", "load shared", 8),
        ("LDS.U16 R4, [R2]", "load shared", 2),
        ("LDGSTS.E.BYPASS.128 [R2], desc[UR4][R6.64]", "copy to shared", 16),
        ("UTMALDG.2D [UR8], [UR4]", "copy to shared", 4),
        ("HMMA.16816.F32 R4, R8, R10, R4", "tensor core", 4),
        ("HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24", "tensor core", 4),
        ("HADD2.F32 R4, -RZ, R4.H0_H0", "other arithmetic", 4),
        ("FADD.FTZ R4, R4, R5", "float32", 4),
        ("STL.128 [R1], R4", "spill", 16),
        ("IMAD.WIDE R4, R2, 0x4, R6", machine_code.REST, 4),
        ("LDGDEPBAR", "wait", 4),
    ],
)
def test_kinds(line, kind, wide):
    (one,) = parsed(f"        /*0010*/                   {line} ;").instructions
    assert one.kind == kind and (one.wide == wide or not re.search("global|shared", kind))


@needs_compiler
@pytest.mark.skipif(bool(machine_code.missing()), reason=machine_code.missing())
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"])
def test_real_code_of_every_generation_is_read(arch):
    source = """extern "C" __global__ void k(const float* a, float* b) {
      float x = 0;
      #pragma unroll 1
      for (int i = 0; i < 77; ++i) { x = fmaf(a[threadIdx.x + 32 * i], x, 1.5f); __syncthreads(); }
      b[threadIdx.x] = x; }"""
    counts = by_kind(parsed(listing(compiled(source, arch)[0])).executed())
    assert counts["load global"] == 77 and counts["float32"] == 77
    assert counts["store global"] == 1 and counts["wait"] >= 77

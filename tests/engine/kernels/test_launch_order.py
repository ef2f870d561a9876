"""What the reader of PTX finds wrong in a kernel that begins before the one before it is over."""

from __future__ import annotations

import pytest

from tests.engine.kernels.launch_order import OPENS, PLAIN, WAITS, judge

SIGNATURE = {"x": "*bf16", "SIZE": "constexpr", "weight": "*bf16", "stride": "i32"}
START = """
.visible .entry kernel(.param .u64 kernel_param_0)
{
	ld.param.b64 	%rd1, [kernel_param_0];
	ld.param.b64 	%rd2, [kernel_param_1];
	ld.param.b32 	%r1, [kernel_param_2];
	mul.wide.s32 	%rd3, %r1, 2;
	add.s64 	%rd4, %rd2, %rd3;
	add.s64 	%rd5, %rd1, %rd3;
"""
WEIGHT = "	@%p1 ld.global.v2.b32 { %r2, %r3 }, [ %rd4 + 0 ];\n"
X = "	ld.global.b32 %r4, [ %rd5 + 0 ];\n"
COPY = "	cp.async.cg.shared.global [ %r9 + 0 ], [ %rd5 + 0 ], 0x10;\n"
STORE = "	@%p1 st.global.b32 [ %rd5 + 0 ], { %r2 };\n"
WAIT = "	griddepcontrol.wait; // dummy %r5\n"
ADMIT = "	griddepcontrol.launch_dependents; // dummy %r6\n"
LEAVE = "	@%p2 bra 	$L__BB0_2;\n"
VIA_WEIGHT = "	add.s64 	%rd6, %rd1, %r2;\n	ld.global.b32 %r7, [ %rd6 + 0 ];\n"


@pytest.mark.parametrize(
    ("code", "overlaps", "said"),
    [
        (WEIGHT + X + STORE, False, PLAIN),
        (ADMIT + X + STORE, False, OPENS),
        (WEIGHT + WAIT + X, False, "waits-in-vain"),
        (WEIGHT + WAIT + ADMIT + LEAVE + X + STORE, True, WAITS),
        (WEIGHT + X + STORE, True, "never-waits"),
        (WEIGHT + WAIT + X, True, "lets-the-next-begin-out-of-turn"),
        (WEIGHT + ADMIT + WAIT + X, True, "lets-the-next-begin-out-of-turn"),
        (X + WAIT + ADMIT, True, "reads-x-before-the-wait"),
        (COPY + WAIT + ADMIT, True, "reads-x-before-the-wait"),
        (WEIGHT + VIA_WEIGHT + WAIT + ADMIT, True, "reads-x-before-the-wait"),
        (STORE + WAIT + ADMIT, True, "st.global.b32-before-the-wait"),
        (LEAVE + WAIT + ADMIT, True, "bra-before-the-wait"),
    ],
)
def test_what_is_in_front_of_the_wait_is_judged(code: str, overlaps: bool, said: str) -> None:
    """Weights may be read there; nothing else, nothing is stored, and nobody leaves."""
    assert judge(START + code + "	ret;\n", SIGNATURE, {"weight"}, overlaps=overlaps) == said

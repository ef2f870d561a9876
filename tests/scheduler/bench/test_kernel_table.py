"""What a profiler saw becomes a table: products by their neighbours, idle time, rates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from scheduler.bench.kernel_table import (
    FIRST_KERNEL,
    KNOWN_KERNELS,
    Launch,
    Window,
    products,
    split_steps,
    tabulate,
)
from scheduler.bench.roofline import Ceilings, Phase

KERNELS = Path(__file__).parents[3] / "engine" / "kernels"
GEMM, REDUCE = "nvjet_tst_64x64_coopA_NTN", "void cublasLt::splitKreduce_kernel<32, 16, int>"
NORM, ROTARY, SILU = "_add_rms_norm_kernel", "_rotary_write_kernel", "_silu_mul_kernel"
ATTEND, COMBINE, QUANTIZE = "_decode_attention", "_combine_attention", "_quantize_rows_kernel"
LAYER = (
    *(NORM, GEMM, REDUCE, ROTARY, ATTEND, COMBINE, GEMM),
    *(NORM, GEMM, SILU, "Memset (Device)", GEMM, REDUCE),
)
LAYER_PRODUCTS = [
    *(None, "qkv", "qkv", None, None, None, "out"),
    *(None, "gate_up", None, None, "down", "down"),
]
END = (NORM, GEMM, "_scan_kernel", "_choose_kernel", "Memcpy DtoH (Device -> Pinned)")
STEP = (FIRST_KERNEL, *LAYER, *LAYER, *END)
CEILINGS = Ceilings(copy_bytes_per_s=4e12, flop_per_s=800e12)


def run(names: Sequence[str], *, begin_us: float = 0.0, gap_us: float = 1.0) -> list[Launch]:
    """Let each take 4 µs, with a gap behind it."""
    return [Launch(name, begin_us + i * (4 + gap_us), 4.0) for i, name in enumerate(names)]


def window(names: Sequence[str], *, wait_us: float = 0.0) -> Window:
    """Make one step of these, whose next begins `wait_us` late."""
    launches = run(names)
    return Window(launches, launches[-1].end_us + 1 + wait_us)


def test_products_are_known_by_their_neighbours() -> None:
    """The library's names are the same for all layers; what runs beside them tells whose each is.

    Sums that were split belong to their product; copies and fills are no product.
    """
    expected = [None, *LAYER_PRODUCTS, *LAYER_PRODUCTS, None, "head", None, None, None]
    assert products(STEP) == expected


def test_rows_in_8_bits_stand_between() -> None:
    """A kernel that prepares a product's input is not the neighbour that tells."""
    layer = (NORM, QUANTIZE, GEMM, ROTARY, ATTEND, QUANTIZE, GEMM, NORM, QUANTIZE, GEMM, SILU)
    expected = [None, None, "qkv", None, None, None, "out", None, None, "gate_up", None]
    assert products(layer) == expected


def test_prefill_has_the_same_products() -> None:
    """Behind attention over slices comes the same product as behind that of decodes."""
    layer = (NORM, GEMM, ROTARY, ATTEND, COMBINE, "_prefill_attention", GEMM, NORM)
    assert products(layer) == [None, "qkv", None, None, None, None, "out", None]


def test_unknown_neighbours_say_nothing() -> None:
    """Beside kernels that are not known here, a product is not taken for another."""
    fused = "_norm_and_product_kernel"
    # SiLU is in the kernel before: what comes next is not attention's product.
    assert products((COMBINE, GEMM, fused, GEMM, NORM)) == [None, "out", None, None, None]
    assert products((NORM, GEMM, NORM)) == [None, None, None]
    # The kernel behind it tells all the same.
    assert products((fused, GEMM, ROTARY)) == [None, "qkv", None]


def test_every_kernel_that_tells_is_the_engines() -> None:
    """What is known of kernels here goes by names that the engine's have."""
    found = set[str]()
    for path in KERNELS.glob("*.py"):
        found |= set(re.findall(r"@triton\.jit[^\n]*\ndef (\w+)\(", path.read_text()))
    assert found >= KNOWN_KERNELS


def test_steps_end_where_the_next_begins() -> None:
    """A wait for the next step is in a window; what has no beginning or no end is left."""
    launches = [
        *run(("_choose_kernel",), begin_us=-50.0),
        *run((FIRST_KERNEL, NORM)),
        *run((FIRST_KERNEL, SILU), begin_us=30.0),
        *run((FIRST_KERNEL,), begin_us=70.0),
    ]
    first, second = split_steps(launches[::-1])
    assert [launch.name for launch in first.launches] == [FIRST_KERNEL, NORM]
    assert (first.step_us, second.step_us) == (30.0, 40.0)
    assert first.idle_after_us() == [1.0, 21.0]
    assert split_steps(run(("another", "begins", "another")), "another")[0].step_us == 10.0


def test_overlapping_launches_leave_no_gap() -> None:
    """Nothing is idle while a launch runs that began before; time is not counted below zero."""
    launches = [Launch("a", 0.0, 10.0), Launch("b", 2.0, 3.0), Launch("c", 12.0, 1.0)]
    assert Window(launches, 12.5).idle_after_us() == [0.0, 2.0, 0.0]


def test_table_adds_up() -> None:
    """Rows hold all that ran, a step's worth, by product and kernel; the longest come first."""
    table = tabulate([window(STEP), window(STEP)], {}, CEILINGS)
    rows = {row.what: row for row in table.rows}
    assert rows["qkv"].kernels == {GEMM: 2, REDUCE: 2}
    assert (rows["qkv"].launches, rows["qkv"].us) == (4, 16)
    assert (rows["head"].launches, rows[NORM].launches, rows[ATTEND].us) == (1, 5, 8)
    assert table.launches == len(STEP)
    assert table.num_steps == 2
    assert sum(row.us for row in table.rows) == 4 * len(STEP)
    assert sum(row.idle_after_us for row in table.rows) == pytest.approx(table.idle_us)
    assert (table.step_us, table.idle_us) == (5 * len(STEP), len(STEP))
    assert table.idle_share == 0.2
    assert [row.us for row in table.rows] == sorted((row.us for row in table.rows), reverse=True)


def test_one_disturbed_step_does_not_count() -> None:
    """Times of steps are medians: one that waited long for its successor changes none."""
    late = window(STEP, wait_us=10_000.0)
    table = tabulate([window(STEP), late, window(STEP)], {}, CEILINGS)
    assert (table.step_us, table.idle_us) == (5 * len(STEP), len(STEP))


def test_rates_are_of_all_launches_of_a_row() -> None:
    """A product's bytes and operations are over the time of its kernels, all layers together."""
    work = {"qkv": Phase(32e6, 6.4e9), SILU: Phase(4e6)}
    rows = {row.what: row for row in tabulate([window(STEP)], work, CEILINGS).rows}
    # 16 µs in four launches; 8 µs by bytes at the ceiling, and as many by operations.
    assert rows["qkv"].gb_per_s == pytest.approx(2000)
    assert rows["qkv"].tflop_per_s == pytest.approx(400)
    assert rows["qkv"].of_ceiling == pytest.approx(0.5)
    assert rows[SILU].gb_per_s == pytest.approx(500)
    assert rows[SILU].tflop_per_s is None
    assert rows["down"].gb_per_s is rows["down"].of_ceiling is None


def test_json_is_small_and_complete() -> None:
    """A row names its kernels, cut off where they are long, and the numbers are short."""
    names = (FIRST_KERNEL, "void cutlass::" + 500 * "x", NORM, SILU, NORM)
    document = tabulate([window(names)] * 3, {FIRST_KERNEL: Phase(1e6)}, CEILINGS).as_json()
    assert json.loads(json.dumps(document)) == document
    [row] = [row for row in document["rows"] if row["what"].startswith("void")]
    assert len(row["what"]) == 80
    [norms] = [row for row in document["rows"] if row["what"] == NORM]
    assert (norms["launches"], norms["us"], norms["us_each"]) == (2, 8, 4)
    [first] = [row for row in document["rows"] if row["what"] == FIRST_KERNEL]
    assert first == {
        "what": FIRST_KERNEL,
        "launches": 1,
        "us": 4,
        "us_each": 4,
        "step_share": 0.16,
        "idle_after_us": 1,
        "gb_per_s": 250,
        "tflop_per_s": None,
        "of_ceiling": 0.0625,
        "kernels": {FIRST_KERNEL: 1},
    }

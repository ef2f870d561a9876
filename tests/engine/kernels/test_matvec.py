"""Products of a few rows, and what stands around them: kernel, twin, and the model's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels import tuned
from engine.kernels.matvec import matvec
from engine.kernels.operations import MATVEC_ROWS
from engine.kernels.twins import matvec as twin
from engine.models import layers

EPS = 1e-5


def make(*sizes: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator).to(device)


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("num_rows", "num_lines", "in_size", "tile"),
    [
        (1, 8, 64, (4, 64)),
        (2, 13, 72, (8, 32)),
        (3, 10, 250, (4, 64)),
        (4, 18, 40, (2, 1024)),
        (1, 5, 3, (16, 1024)),
    ],
)
@pytest.mark.parametrize("has_all", [False, True])
def test_kernel_multiplies_what_its_twin_multiplies(
    num_rows: int,
    num_lines: int,
    in_size: int,
    tile: tuple[int, int],
    has_all: bool,
    device: torch.device,
) -> None:
    """Sizes within a tile and over several, whole and not, bare and with all that there is."""
    x = make(num_rows, in_size, device=device)
    # What lies around a weight is none of its own.
    room = torch.full((num_lines + 1, in_size + 8), torch.nan, device=device)
    weight = room[:num_lines, :in_size].copy_(make(num_lines, in_size, device=device, seed=1))
    extras: dict[str, Tensor] = {}
    if has_all:
        extras = {
            "bias": make(num_lines, device=device, seed=2),
            "norm": make(in_size, device=device, seed=3),
            "residual": make(num_rows, num_lines, device=device, seed=4),
        }
    settings = {"LINES": tile[0], "COLUMNS": tile[1], "num_warps": 1, "num_stages": 1}
    with tuned.trying("matvec", settings):
        found = matvec(x, weight, **extras, eps=EPS)
    close(found, twin.matvec(x, weight, **extras, eps=EPS))


@pytest.mark.parametrize("num_lines", [8, 22])
@pytest.mark.parametrize("has_bias", [False, True])
def test_kernel_gates_what_its_twin_gates(
    num_lines: int, has_bias: bool, device: torch.device
) -> None:
    """The first half of the lines gates the second, line by line."""
    x, weight = make(2, 48, device=device), make(num_lines, 48, device=device, seed=1)
    bias = make(num_lines, device=device, seed=2) if has_bias else None
    norm = make(48, device=device, seed=3)
    found = matvec(x, weight, bias, norm=norm, eps=EPS, gated=True)
    close(found, twin.matvec(x, weight, bias, norm=norm, eps=EPS, gated=True))


def test_twin_computes_what_the_model_computes(device: torch.device) -> None:
    """The twin is the model's norm, product, gated unit and addition, one after the other."""
    x, weight = make(3, 48, device=device), make(64, 48, device=device, seed=1)
    norm, residual = make(48, device=device, seed=2), make(3, 64, device=device, seed=3)
    product = layers.rms_norm(x, norm, EPS) @ weight.t()
    close(twin.matvec(x, weight, norm=norm, eps=EPS, gated=True), layers.silu_mul(product.clone()))
    close(twin.matvec(x, weight, norm=norm, eps=EPS, residual=residual), product + residual)


@pytest.mark.parametrize("how", [matvec, twin.matvec])
def test_rows_may_be_chosen_and_lie_apart(how: type[matvec], device: torch.device) -> None:
    """Some rows of a wider tensor, in any order, go where they are told, and nowhere else."""
    wide, weight = make(6, 80, device=device), make(12, 40, device=device, seed=1)
    rows = torch.tensor([4, 0, 0], dtype=torch.int32, device=device)
    room = make(3, 20, device=device, seed=2)
    untouched = room[:, 12:].clone()
    norm = make(40, device=device, seed=3)
    found = how(wide[:, 40:], weight, norm=norm, eps=EPS, rows=rows, out=room[:, :12])
    close(room[:, :12], twin.matvec(wide[rows, 40:], weight, norm=norm, eps=EPS))
    assert found.data_ptr() == room.data_ptr()
    assert torch.equal(room[:, 12:], untouched)


@pytest.mark.parametrize("how", [matvec, twin.matvec])
def test_weights_may_lie_by_column(how: type[matvec], device: torch.device) -> None:
    """A weight that is transposed in memory is read where it is."""
    x, weight = make(2, 24, device=device), make(24, 12, device=device, seed=1)
    close(how(x, weight.t()), x @ weight)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_stays_in_its_row(device: torch.device) -> None:
    """Of four rows two are broken; the others come out as they do without them."""
    x, weight = make(MATVEC_ROWS, 40, device=device), make(16, 40, device=device, seed=1)
    norm, residual = make(40, device=device, seed=2), make(MATVEC_ROWS, 16, device=device, seed=3)
    wanted = matvec(x, weight, norm=norm, eps=EPS, residual=residual)
    x[1, 7], x[3] = torch.nan, torch.inf
    found = matvec(x, weight, norm=norm, eps=EPS, residual=residual)
    assert torch.equal(found[::2], wanted[::2])
    assert not found[1::2].isfinite().any()


def test_no_rows_are_no_work(device: torch.device) -> None:
    """An empty batch gives an empty result."""
    assert matvec(make(0, 16, device=device), make(6, 16, device=device)).shape == (0, 6)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize(("num_lines", "in_size"), [(1024, 3072), (6144, 1024), (512, 4864)])
def test_half_precision_is_rounded_once(
    num_rows: int, num_lines: int, in_size: int, device: torch.device
) -> None:
    """In bfloat16 the kernel differs from its twin by a rounding, launched either way."""
    if device.type != "cuda":
        pytest.skip("the interpreter has no bfloat16")
    x, weight = (make(n, in_size, device=device).bfloat16() for n in (num_rows, num_lines))
    norm = make(in_size, device=device, seed=2).bfloat16()
    for extras in ({"gated": True}, {"residual": make(num_rows, num_lines, device=device)}):
        wanted = twin.matvec(x, weight, norm=norm, eps=EPS, **extras)
        for dependent in (False, torch.cuda.get_device_capability(device) >= (9, 0)):
            found = matvec(x, weight, norm=norm, eps=EPS, dependent=dependent, **extras)
            torch.testing.assert_close(found, wanted, rtol=2**-7, atol=2e-2)

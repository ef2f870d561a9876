"""How a view of `sluice top` is laid out: as many lines of as many columns as a terminal has.

What is fixed comes first: models and bands. Tenants have the lines that are left, those with the
most work and those whose first tokens took the longest, two thirds of them for the shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WIDTH, HEIGHT = 80, 24

_MAX_MODELS: Final = 3
_NAME: Final = 20
_BAR: Final = 14

View = Mapping[str, Any]


def screen(view: View, width: int = WIDTH, height: int = HEIGHT) -> list[str]:
    """Return the lines of one view, none longer and no more than there is room for."""
    models, bands = view["models"][:_MAX_MODELS], view["bands"]
    lines = [_first(view), _ended(view["ended"]), _MODELS, *map(_model, models), ""]
    lines += [_BANDS, *map(_band, bands), ""] if bands else []
    left = height - len(lines)
    num_slowest = min(len(view["slowest"]), max(1, left // 3 - 1))
    shares = view["shares"][: max(0, left - num_slowest - 3)]
    lines += [_SHARES, *(_share(one, names_model=len(models) > 1) for one in shares)]
    if not view["shares"]:
        lines.append("no tenant has work")
    if num_slowest and height - len(lines) > 2:
        lines += ["", _SLOWEST, *map(_slow, view["slowest"][:num_slowest])]
    return [_cut(line, width) for line in lines[:height]]


def _first(view: View) -> str:
    at = str(view["at"])[:19].replace("T", " ")
    out = sum(model["output_tokens_per_s"] or 0.0 for model in view["models"])
    queued = sum(model["queued"] for model in view["models"])
    running = sum(model["running"] for model in view["models"])
    return f"sluice top  {at} UTC   {running} running, {queued} queued, {_short(out)} tokens/s"


def _ended(ended: View) -> str:
    said = f"1 min: {_short(ended['requests'])} requests, {_short(ended['failed'])} failed"
    if ended["mean_ttft_s"] is not None:
        said += f", TTFT {_s(ended['mean_ttft_s'])}, worst {_s(ended['worst_ttft_s'])}"
    if ended["attained"] is not None:
        said += f", promises kept {_percent(ended['attained'])}"
    return said


_MODELS: Final = (
    f"{'MODEL':{_NAME}} {'queued':>7} {'running':>7} {'KV':>5} {'in t/s':>7} {'out t/s':>7} "
    f"{'backlog':>8} {'sent back':>9}"
)
_BANDS: Final = f"{'BAND':{_NAME}} {'queued':>7} {'running':>7} {'tokens waiting':>20}"
_SHARES: Final = (
    f"{'SHARES':{_NAME}} {'band':8} {'queued':>7} {'running':>7} {'entitled':>8} {'got':>5} "
)
_SLOWEST: Final = (
    f"{'SLOWEST':{_NAME}} {'requests':>8} {'failed':>7} {'first token':>11} {'worst':>8} "
    f"{'kept':>6}"
)


def _model(model: View) -> str:
    return (
        f"{_name(model['model'])} {_short(model['queued']):>7} {_short(model['running']):>7} "
        f"{_percent(model['kv_used']):>5} {_short(model['prompt_tokens_per_s']):>7} "
        f"{_short(model['output_tokens_per_s']):>7} {_s(model['backlog_s']):>8} "
        f"{_short(model['num_preemptions']):>9}"
    )


def _band(band: View) -> str:
    return (
        f"{_name(band['band'])} {_short(band['queued']):>7} {_short(band['running']):>7} "
        f"{_short(band['queued_tokens']):>20}"
    )


def _share(share: View, *, names_model: bool) -> str:
    got, tenant = share["received"], share["tenant"]
    if names_model:
        tenant = f"{tenant} @ {share['model']}"
    return (
        f"{_name(tenant)} {share['band'][:8]:8} {_short(share['queued']):>7} "
        f"{_short(share['running']):>7} {_percent(share['entitled']):>8} {_percent(got):>5} "
        f"{_bar(got, share['entitled'])}"
    )


def _slow(slow: View) -> str:
    return (
        f"{_name(slow['tenant'])} {_short(slow['requests']):>8} {_short(slow['failed']):>7} "
        f"{_s(slow['mean_ttft_s']):>11} {_s(slow['worst_ttft_s']):>8} "
        f"{_percent(slow['attained']):>6}"
    )


def _bar(got: float | None, entitled: float | None) -> str:
    """Draw what was got, and with a line what there is a right to, if there is one now."""
    filled = round((got or 0.0) * _BAR)
    cells = ["█" if n < filled else "·" for n in range(_BAR)]
    if entitled is not None:
        mark = min(_BAR - 1, int(entitled * _BAR))
        cells[mark] = "▐" if mark < filled else "|"
    return "".join(cells)


def _name(text: str) -> str:
    from rich.cells import set_cell_size

    # Names come from a person, and some letters are as wide as two.
    clean = "".join(one if one.isprintable() else "?" for one in text)
    return set_cell_size(clean, _NAME)


def _cut(line: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return line.rstrip() if cell_len(line) <= width else set_cell_size(line, width).rstrip()


def _short(number: float | None) -> str:
    """Write a number in five characters at most."""
    if number is None:
        return "-"
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.{0 if number >= 100 * unit else 1}f}{name}"
    return f"{number:.0f}"


def _s(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 1000 else f"{seconds / 60:.0f} min"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"

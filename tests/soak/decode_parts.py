"""The parts of `soak-fairness` in which nothing waits: what rows are served, beside weights.

Spells with shares held and with a loss of 0 take turns, so that a machine that gets slower does so
for both; a figure is the median of its rounds. Beside each stands how busy the busiest client was:
near 1 it would be the client that was measured.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from scheduler.bench.report import Figure, at_least, at_most
from tests.live_server import Server, start_server
from tests.soak.decode_shares import (
    SETTLE_S,
    SHORT,
    Flood,
    Spell,
    new_keys,
    run,
    set_loss,
    set_weight,
)

Part = tuple[dict[str, Figure], dict[str, Any]]
ROUNDS: Final = 3
SPELL_S: Final = 15.0
# Of the end of a spell, in which streams are no longer replaced.
_LAST_S: Final = 0.5
_LONG_PROMPT, _LONG_OUTPUT = 384, (256, 384)
# Of long outputs: what they cost besides is prompts of those that follow, which come once some end.
_LONG_SPELL_S: Final = 30.0
_LONG_SETTLE_S: Final = 10.0
_APART: Final = 0.1
_LOSS: Final = 0.2
_JOINS_S: Final = 6.0
# A gateway has learned of a weight by then.
_LEARNED_S: Final = 2.0

_FEW = Flood(tenant="acme", streams=48, output=SHORT)
_MANY = Flood(tenant="globex", streams=96)


def decode_shares(directory: Path) -> Part:
    """Let tenants that all fit have more rows than others, and measure what they are served."""
    server = start_server(directory / "data")
    try:
        return _rows(server)
    finally:
        server.stop()


def light_stream(directory: Path) -> Part:
    """Let one stream run alone, and beside 150 of a flood."""
    server = start_server(directory / "data")
    # Contexts at which rows cost the engine more than handing their tokens out does the gateway.
    light = Flood(tenant="acme", streams=1, output=_LONG_OUTPUT, prompt=_LONG_PROMPT)
    flooded = [light, replace(light, tenant="globex", streams=150)]
    tpot_s: dict[str, list[float]] = {}
    per_s: dict[str, list[float]] = {}
    busy: list[float] = []
    try:
        for _ in range(ROUNDS):
            for name, floods, loss in (
                ("alone", [light], _LOSS),
                ("loss_20", flooded, _LOSS),
                ("loss_30", flooded, 0.3),
                ("loss_0", flooded, 0.0),
            ):
                set_loss(server, loss)
                spell = run(server, floods, for_s=_LONG_SPELL_S)
                start_s, end_s = _LONG_SETTLE_S, _LONG_SPELL_S
                tpot_s.setdefault(name, []).append(spell.tpot_s(0, start_s, end_s))
                per_s.setdefault(name, []).append(spell.tokens_per_s(start_s, end_s - _LAST_S))
                busy += spell.busy
    finally:
        server.stop()
    ratios = {name: _ratio(tpot_s[name], tpot_s["alone"]) for name in tpot_s}
    figures = {
        "light_tpot_beside_150_ratio": at_most(ratios["loss_20"], 3.5, "ratio"),
        "light_tpot_beside_150_at_30_ratio": at_most(ratios["loss_30"], 2.5, "ratio"),
        "light_tpot_beside_150_at_0_ratio": Figure(ratios["loss_0"], "ratio"),
        "light_tokens_per_s_ratio": at_least(
            _ratio(per_s["loss_20"], per_s["loss_0"]), 0.8, "ratio"
        ),
        "light_tokens_per_s_at_30_ratio": at_least(
            _ratio(per_s["loss_30"], per_s["loss_0"]), 0.7, "ratio"
        ),
        "light_client_busy": at_most(max(busy), 0.7, "share"),
    }
    return figures, {"light_stream": {"tpot_s": tpot_s, "tokens_per_s": per_s, "busy": busy}}


def _rows(server: Server) -> Part:
    figures: dict[str, Figure] = {}
    samples: dict[str, Any] = {}
    keys = new_keys(server, "acme", 50)
    _contest(server, "rows", [_FEW, _MANY], 0.5, figures, samples)
    fifty = [replace(_MANY, tenant="acme", streams=100, keys=keys), replace(_MANY, streams=50)]
    _contest(server, "keys", fifty, 0.5, figures, samples)
    late = [replace(_FEW, from_s=_JOINS_S), _MANY]
    _contest(server, "late", late, 0.5, figures, samples, start_s=_JOINS_S + 1.0)
    _change_weight(server, figures, samples)
    heavy = [replace(_FEW, streams=96), replace(_MANY, streams=48)]
    _contest(server, "weights", heavy, 0.25, figures, samples)
    return figures, {"decode_shares": samples}


def _contest(
    server: Server,
    name: str,
    floods: Sequence[Flood],
    due: float,
    figures: dict[str, Figure],
    samples: dict[str, Any],
    *,
    start_s: float = SETTLE_S,
) -> None:
    """Measure the first tenant's share, and all tokens beside those without shares."""
    spells: dict[float, list[Spell]] = {_LOSS: [], 0.0: []}
    for _ in range(ROUNDS):
        for loss, of_loss in spells.items():
            set_loss(server, loss)
            of_loss.append(run(server, floods, for_s=SPELL_S))
    end_s = SPELL_S - _LAST_S
    share = {at: [spell.share(start_s, end_s) for spell in of] for at, of in spells.items()}
    tokens = {at: [spell.token_share(start_s, end_s) for spell in of] for at, of in spells.items()}
    per_s = {at: [spell.tokens_per_s(start_s, end_s) for spell in of] for at, of in spells.items()}
    costs = {at: [spell.step_costs_us for spell in of] for at, of in spells.items()}
    busy = [busy for of in spells.values() for spell in of for busy in spell.busy]
    figures |= {
        f"decode_{name}_share": Figure(median(share[_LOSS]), "share"),
        f"decode_{name}_share_error": at_most(abs(median(share[_LOSS]) / due - 1), _APART, "ratio"),
        f"decode_{name}_share_at_0": Figure(median(share[0.0]), "share"),
        f"decode_{name}_token_share": Figure(median(tokens[_LOSS]), "share"),
        f"decode_{name}_tokens_per_s_ratio": at_least(
            _ratio(per_s[_LOSS], per_s[0.0]), 1 - _LOSS, "ratio"
        ),
        f"decode_{name}_client_busy": at_most(max(busy), 0.7, "share"),
    }
    found = {"share": share, "token_share": tokens, "tokens_per_s": per_s}
    found |= {"step_costs_us": costs, "busy": busy}
    samples[name] = json.loads(json.dumps(found))


def _change_weight(server: Server, figures: dict[str, Figure], samples: dict[str, Any]) -> None:
    """Give a tenant three times its weight while rows of both run."""
    set_loss(server, _LOSS)
    at_s = SPELL_S / 2
    timer = threading.Timer(1.0 + at_s, set_weight, (server, "globex", 3.0))
    timer.start()
    began_s = time.monotonic()
    spell = run(server, [replace(_FEW, streams=96), replace(_MANY, streams=48)], for_s=2 * SPELL_S)
    timer.join()
    before = spell.share(SETTLE_S, at_s)
    after = spell.share(at_s + _LEARNED_S, 2 * SPELL_S - _LAST_S)
    figures |= {
        "decode_weight_before_error": at_most(abs(before / 0.5 - 1), _APART, "ratio"),
        "decode_weight_after_error": at_most(abs(after / 0.25 - 1), _APART, "ratio"),
    }
    samples["weight"] = {
        "before": before,
        "after": after,
        "busy": list(spell.busy),
        "seconds": time.monotonic() - began_s,
    }


def _ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """Return the median over rounds of one against the other."""
    return median(a / b for a, b in zip(these, those, strict=True))

"""Waiting for a batch's end, through restarts of the server; an interrupt leaves it running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.cli.batches.patience import Patience
from gateway.cli.batches.progress import BatchProgress
from gateway.cli.exits import CliError, Exit, NoAnswer
from gateway.cli.options import segment
from gateway.cli.output import note
from gateway.cli.public_client import PublicApi

ENDED: Final = ("completed", "failed", "expired", "cancelled")

_SHORTEST_INTERVAL_S: Final = 0.5
_LONGEST_INTERVAL_S: Final = 5.0
_SHOWN_ERRORS: Final = 5
_ENDS: Final = {
    "failed": "has failed",
    "expired": "has expired",
    "cancelled": "was cancelled",
}


def wait_for(
    api: PublicApi, batch: Mapping[str, Any], *, patience: Patience | None = None
) -> Mapping[str, Any]:
    """Show a batch until it has ended and return it as it then is.

    Raises: `CliError`: with 130 at an interrupt, else as the API's; it names how to go on.
    """
    patience = patience or Patience()
    name = batch["id"]
    again = f"'sluice batch watch {name}' goes on waiting"
    began = patience.clock()
    try:
        with BatchProgress(clock=patience.clock) as progress:
            progress.show(batch)
            while batch["status"] not in ENDED:
                patience.sleep(_interval_s(patience.clock() - began))
                batch = patience.ask(
                    lambda: api.call("GET", f"/batches/{segment(name)}"), progress.say
                )
                progress.show(batch)
    except KeyboardInterrupt:
        raise CliError(
            f"interrupted; {name} runs on: {again}, 'sluice batch cancel {name}' ends it",
            Exit.INTERRUPTED,
        ) from None
    except NoAnswer as exc:
        raise CliError(f"{exc}; {name} may run on: {again}") from None
    return batch


def report_end(batch: Mapping[str, Any]) -> None:
    """Say how a batch has ended, and what to do next.

    Raises: `CliError`: it was not completed.
    """
    name, counts = batch["id"], batch.get("request_counts") or {}
    failed, total = counts.get("failed", 0), counts.get("total", 0)
    if batch["status"] == "completed":
        if counts.get("completed"):
            note(f"The answers: sluice batch download {name}")
        if failed:
            note(f"{failed:,} of {total:,} failed: sluice batch download {name} --errors")
        return
    ended = _ENDS.get(batch["status"], f"is {batch['status']}")
    lines = [f"{name} {ended}", *errors_of(batch)[:_SHOWN_ERRORS]]
    if len(errors_of(batch)) > _SHOWN_ERRORS:
        lines.append(f"and more: sluice batch show {name}")
    if batch.get("output_file_id"):
        lines.append(f"what was answered before: sluice batch download {name}")
    if batch.get("error_file_id"):
        lines.append(f"what was not: sluice batch download {name} --errors")
    raise CliError("\n".join(lines))


def errors_of(batch: Mapping[str, Any]) -> list[str]:
    """Say what is wrong with a batch's input, a line each."""
    found = (batch.get("errors") or {}).get("data") or ()
    return [
        (f"line {one['line']}: " if one.get("line") is not None else "")
        + f"{one.get('code')}: {one.get('message')}"
        for one in found
    ]


def _interval_s(waited_s: float) -> float:
    """Return how long to wait before the next look: what takes long is looked at less often."""
    return min(_LONGEST_INTERVAL_S, max(_SHORTEST_INTERVAL_S, waited_s / 30))

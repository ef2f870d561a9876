"""The options of `sluice simulate`: how each is written, and what its help says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Replay it; the format is recognised.")
]
Suite = Annotated[
    str | None, typer.Option(metavar="NAME", help="Run a suite of workloads with goals.")
]
Policy = Annotated[
    str, typer.Option(metavar="P", help="A policy, or tenant/key/request, as vtc/vtc/edf.")
]
Load = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        min=0.001,
        help="Offered tokens as a multiple of what the engine can do with this trace, "
        "measured by a saturated run. Default: the trace's own times.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="For what is drawn.")]
Machine = Annotated[
    str,
    typer.Option(
        "--machine",
        "--engine-profile",
        metavar="NAME|FILE",
        help="The engine that is simulated: a100-llama-3-8b, nvidia-h200-qwen3-8b, cpu-demo, "
        "or a JSON file.",
    ),
]
Preset = Annotated[str, typer.Option(metavar="NAME", help="The scheduler's numbers.")]
Tenants = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="Weights, bands and promises by client."),
]
Ttft = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Promise a first token by then.")
]
Tpot = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Promise a pace of tokens.")
]
MaxGap = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0, help="Promise no longer gap.")
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="What requests ask for, where their length is to be predicted."
    ),
]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Take the first N requests.")]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="OUT", help="Draw service, TTFT and the queue: .svg, .png or .pdf."),
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write a suite's report there as well.")
]

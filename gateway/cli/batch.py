"""`sluice batch`: submit, watch, list, show, cancel and download batches, with a tenant's key."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, cast

import typer

from gateway.cli import batch_dead
from gateway.cli.batches.input_file import STDIN, CountedFile, InputFile, open_input
from gateway.cli.batches.output_file import save
from gateway.cli.batches.patience import Patience
from gateway.cli.batches.progress import costs, who_is_needed, why_paused
from gateway.cli.batches.waiting import ENDED, errors_of, report_end, wait_for
from gateway.cli.exits import CliError, Exit, NoAnswer
from gateway.cli.options import AsJson, NoHeader, segment
from gateway.cli.output import note, print_fields, print_json, print_table
from gateway.cli.public_client import PublicApi, TryLater, find_api
from scheduler.progress import Progress

app = typer.Typer(
    help="Batches: many requests in a file, answered when there is room, at a discount. "
    "All but 'dead' use a tenant's key, SLUICE_API_KEY, and the API at SLUICE_BASE_URL.",
    no_args_is_help=True,
)
app.add_typer(batch_dead.app, name="dead")

Document = Mapping[str, Any]  # a batch or a file as the server shows it


def _named(batch_id: str) -> str:
    """Refuse an id that is none: `$(cat id)` of a submission that failed."""
    if not batch_id.strip():
        raise typer.BadParameter("it is empty")
    return batch_id


BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.", callback=_named)]

_COLUMNS: Final = (
    *("id", "status", "paused_for", "endpoint"),
    *("total", "completed", "failed", "created_at"),
)
_PAGE_ROWS: Final = 100
# A bar for less than this would be gone before it is read.
_SLOW_UPLOAD_BYTES: Final = 8_000_000
_CREATE_PATIENCE_S: Final = 60.0


@app.command()
def submit(
    file: Annotated[
        str, typer.Argument(metavar="FILE.jsonl", help="A request a line; -: standard input.")
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress until it ends.")] = False,
    completion_window: Annotated[
        str, typer.Option(help="Until when it is to be done, as 24h, or shorter.")
    ] = "24h",
    endpoint: Annotated[
        str | None, typer.Option(help="Where all its requests go; unset: where the first does.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A note on it; repeat it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Submit a batch; its id is printed alone on stdout.

    Example: sluice batch submit requests.jsonl --wait --metadata run=nightly
    """
    notes = dict(_note(text) for text in metadata or ())
    with PublicApi(find_api()) as api:
        with open_input(file) as given:
            uploaded = _upload(api, given)
            body = {"input_file_id": uploaded["id"], "endpoint": endpoint or given.endpoint}
        body["completion_window"] = completion_window
        batch = _create(api, {**body, "metadata": notes} if notes else body)
        if not as_json:
            # At once: whoever waits, or is interrupted, has it.
            print(batch["id"], flush=True)
        elif not wait:
            print_json(batch)
        if wait:
            _wait(api, batch, as_json=as_json)


@app.command()
def watch(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show a batch's progress until it ends; fails unless it is completed.

    An interrupt ends the watching alone. Example: sluice batch watch batch_68a0c2
    """
    with PublicApi(find_api()) as api:
        _wait(api, api.call("GET", f"/batches/{segment(batch_id)}"), as_json=as_json)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the newest first.")] = 20,
    no_header: NoHeader = False,
    as_json: AsJson = False,
) -> None:
    """List the tenant's batches. Example: sluice batch list --limit 5"""
    with PublicApi(find_api()) as api:
        found, has_more = _newest(api, limit)
    if as_json:
        print_json(found)
        return
    rows = [one | (one.get("request_counts") or {}) | _times(one) for one in found]
    rows = [dict.fromkeys(_COLUMNS) | row for row in rows]
    print_table(rows, _COLUMNS, none="There are no batches.", no_header=no_header)
    if has_more:
        note("There are more: --limit shows them.")


@app.command()
def show(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Show a batch: its state, counts, times and files. Example: sluice batch show batch_68a0c2"""
    with PublicApi(find_api()) as api:
        batch = api.call("GET", f"/batches/{segment(batch_id)}")
    if as_json:
        print_json(batch)
        return
    hidden = ("object", "errors")
    print_fields({n: v for n, v in (batch | _times(batch)).items() if n not in hidden})
    for error in errors_of(batch):
        print(f"error\t{error}")
    for said in (why_paused(batch), who_is_needed(batch), ", ".join(costs(batch))):
        if said:
            note(said)


@app.command()
def cancel(batch_id: BatchId, as_json: AsJson = False) -> None:
    """Cancel a batch: what is answered stays, the rest is dropped and costs nothing.

    Example: sluice batch cancel batch_68a0c2
    """
    with PublicApi(find_api()) as api:
        batch = api.call("POST", f"/batches/{segment(batch_id)}/cancel")
    if as_json:
        print_json(batch)
        return
    print(batch["id"])
    note(f"It is {batch['status']}.")


@app.command()
def download(
    batch_id: BatchId,
    output: Annotated[
        str | None,
        typer.Option(help="A file, a directory, or - for stdout; unset: a file named by the id."),
    ] = None,
    errors: Annotated[
        bool, typer.Option("--errors", help="What failed, instead of what was answered.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Save a batch's answers, or its errors; the file's path is printed alone on stdout.

    Example: sluice batch download batch_68a0c2 --output answers.jsonl
    """
    if output == STDIN and as_json:
        raise typer.BadParameter("--output - and --json exclude each other")
    with PublicApi(find_api()) as api:
        batch = api.call("GET", f"/batches/{segment(batch_id)}")
        file_id = _result_file(batch, errors=errors)
        pieces = api.download(f"/files/{segment(file_id)}/content")
        if output == STDIN:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            return
        path = _target(output, f"{batch['id']}_{'errors' if errors else 'output'}.jsonl")
        size_bytes = save(pieces, path, force=force)
    if as_json:
        print_json({"file_id": file_id, "path": str(path), "size_bytes": size_bytes})
        return
    print(path)


def _note(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(
            f"'{text}' is not NAME=VALUE, as run=nightly", param_hint="--metadata"
        )
    return name, value


def _upload(api: PublicApi, given: InputFile) -> Document:
    """Send the input; an interrupt leaves nothing behind that could be billed."""
    try:
        with Progress(
            given.size_bytes,
            label="upload",
            unit="bytes",
            enabled=sys.stderr.isatty() and given.size_bytes >= _SLOW_UPLOAD_BYTES,
        ) as bar:
            counted = CountedFile(given.file, lambda size: bar.advance(size, amount=size))
            uploaded: Document = api.upload(cast(BinaryIO, counted), given.name, "batch")
    except KeyboardInterrupt:
        raise CliError("interrupted: nothing was submitted", Exit.INTERRUPTED) from None
    return uploaded


def _create(api: PublicApi, body: Document) -> Document:
    """Create the batch, once however often it must be asked; a refused one's input is removed."""
    key = {"idempotency-key": str(uuid.uuid4())}
    file_id = body["input_file_id"]

    def ask() -> Document:
        try:
            batch: Document = api.call("POST", "/batches", body=body, headers=key)
        except TryLater as exc:
            if exc.is_limit:  # which may hold for hours
                raise CliError(str(exc)) from None
            raise
        return batch

    try:
        return Patience(give_up_s=_CREATE_PATIENCE_S).ask(ask, note)
    except NoAnswer as exc:
        raise CliError(
            f"{exc}; {file_id} is uploaded, and 'sluice batch list' shows whether the batch is made"
        ) from None
    except KeyboardInterrupt:
        raise CliError(
            "interrupted: 'sluice batch list' shows whether the batch is made", Exit.INTERRUPTED
        ) from None
    except CliError:
        _remove(api, file_id)
        raise


def _remove(api: PublicApi, file_id: str) -> None:
    try:
        api.call("DELETE", f"/files/{segment(file_id)}")
    except CliError as exc:
        note(f"{file_id} is left: {exc}")


def _wait(api: PublicApi, batch: Document, *, as_json: bool) -> None:
    batch = wait_for(api, batch)
    if as_json:
        print_json(batch)
    report_end(batch)


def _newest(api: PublicApi, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return up to `limit` batches, page by page, and whether there are more."""
    found: list[dict[str, Any]] = []
    asked: dict[str, str] = {}
    while True:
        asked["limit"] = str(min(_PAGE_ROWS, limit - len(found)))
        page = api.call("GET", "/batches", params=asked)
        found += page["data"]
        if len(found) >= limit or not page.get("has_more") or not page["data"]:
            return found, bool(page.get("has_more"))
        asked["after"] = page["data"][-1]["id"]


def _result_file(batch: Document, *, errors: bool) -> str:
    """Return the file that was asked for. Raises: `CliError`: there is none, or none yet."""
    name = batch["id"]
    file_id = batch.get("error_file_id" if errors else "output_file_id")
    if file_id is not None:
        return str(file_id)
    if batch["status"] not in ENDED:
        raise CliError(
            f"{name} is {batch['status']} and has no files yet: 'sluice batch watch {name}' waits",
            Exit.CONFLICT,
        )
    other = batch.get("output_file_id" if errors else "error_file_id")
    what = "no request failed" if errors else "no request was answered"
    hint = f": sluice batch download {name} --errors" if other and not errors else ""
    raise CliError(f"{name} is {batch['status']} and {what}{hint}", Exit.NOT_FOUND)


def _target(output: str | None, name: str) -> Path:
    # An id is the server's word: it names no directory here.
    plain = name.replace("/", "_")
    if output is None:
        return Path(plain)
    path = Path(output)
    if path.is_dir() or output.endswith("/"):
        path.mkdir(parents=True, exist_ok=True)
        return path / plain
    return path


def _times(batch: Document) -> dict[str, str]:
    """Write a batch's times as the rest of the command line does, in UTC."""
    return dict(_written(batch))


def _written(batch: Document) -> Iterator[tuple[str, str]]:
    for name, value in batch.items():
        if name.endswith("_at") and isinstance(value, int):
            yield name, f"{datetime.fromtimestamp(value, UTC):%Y-%m-%dT%H:%M:%SZ}"

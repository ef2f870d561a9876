"""What the shared counters are asked and what they answer; how that is spelled, the store knows.

Each operation names the answers that it may get. Whatever is done, it is safe to do again. Where
one goes wrong its answer is `Failed`, and those that were sent along are done. Requests are named
by the hexadecimal digits of their id, times are microseconds since `gateway.domain.limits.BASE_S`
on the counters' own clock. All of them stand in one file, to be read beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.domain.limits import Amounts, Denied, Limit, Limits, Told
from gateway.domain.quota import Scope, Standing

# What is asked.


@dataclass(frozen=True, slots=True)
class Found:
    """Begin a life of counters that are empty, under that name; it is asked alone.

    Hard limits let nothing through for `build_us`, while others may still come back, nor before
    `num_gateways` are there, for at most `wait_us`.
    """

    epoch: str
    build_us: int
    wait_us: int = 0
    num_gateways: int = 1


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hold amounts in all limits or in none → `Held`, `Denied`, `Stale`, `Building`, `Unknown`,
    `Settled`. `meta` is kept for whoever bills the request if its process dies.
    """

    request_id: str
    limits: Limits
    amounts: Amounts
    meta: str
    lease_us: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Hold more output, as much as fits, and renew → `Extended`, `Gone`, `Building`, `Unknown`.

    `nano_usd` is what all of `tokens` cost; `told` is what was used so far. It is for a `choice`
    with `granted` tokens so far: asked again as long as that is so, it is answered the same.
    """

    request_id: str
    tokens: int
    nano_usd: int
    lease_us: int
    told: Told
    choice: int = 0
    granted: int | None = None


@dataclass(frozen=True, slots=True)
class Settle:
    """Let go of what is held and count what was used, once → `Done`, `Known`, `Nothing`.

    With its `limits` the answer lists windows that are used to `listed_percent` or more. `at_us`
    and `meta` are for requests that the counters may have forgotten: windows that are loaded later
    ask the ledger for them, others are to be loaded again, and those of its `limits` that were
    loaded with what it was vouched for are put right.
    """

    request_id: str
    used: Amounts
    limits: Limits | None = None
    listed_percent: int = 100
    at_us: int = 0
    meta: str = ""


@dataclass(frozen=True, slots=True)
class Recount:
    """Have the windows of who is billed loaded again, as the ledger may have more → `Done`.

    Each of `metas` begins as that of a request does.
    """

    metas: Sequence[str]


@dataclass(frozen=True, slots=True)
class Begun:
    """Let go of the tokens of its prompt, which waits no longer → `Done`, `Nothing`."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Renew leases, with what each has used, and be counted as alive → `Kept`.

    Not counted in another life of the counters than `epoch`, where one is named: who has yet to
    hold again in it what it holds is not back.
    """

    gateway: str
    lease_us: int
    told: Sequence[tuple[str, Told]]
    epoch: str | None = None


@dataclass(frozen=True, slots=True)
class HoldAgain:
    """Hold what was granted before the counters forgot it → `Done`, `Known`, `Gone`.

    Gone: a hard window was loaded without it since, and others have got it.
    """

    request_id: str
    limits: Limits
    amounts: Amounts
    at_us: int
    meta: str
    lease_us: int


@dataclass(frozen=True, slots=True)
class Load:
    """Learn from the ledger what each slot of a window has seen, and count what runs in it →
    `Done`, `Known`, `Building`, `Waiting`.

    Of those that were `asked` for, as they settled unseen or are held still, the sums have
    `booked`, each with so much. They have too what processes `vouched` for, and billed for the
    dead: whose, in which slot, and how much. `since_us` is of the first `Waiting`.
    """

    limit: Limit
    used: Sequence[int]
    asked: Sequence[str] = ()
    booked: Sequence[tuple[str, int]] = ()
    vouched: Sequence[tuple[str, int, int]] = ()
    since_us: int = 0


@dataclass(frozen=True, slots=True)
class Repair:
    """Correct what a window's newest slot has used by `more` → `Done`, `Nothing`.

    Only where it is still as it was `seen`; None: in any case.
    """

    limit: Limit
    seen: int | None
    more: int


@dataclass(frozen=True, slots=True)
class Look:
    """See how limits stand → `Seen`."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class ReadSlot:
    """See the newest slot of a window → `SlotUse`."""

    limit: Limit


@dataclass(frozen=True, slots=True)
class Sweep:
    """Reap leases that ran out, and list requests to be billed, at most so many → `Swept`.

    Those under a hard limit are not reaped: they are listed as overdue.
    """

    max_requests: int


@dataclass(frozen=True, slots=True)
class Reap:
    """End what is overdue: at what the ledger has of it, or, None, at what was told → `Reaped`."""

    used: Sequence[tuple[str, Amounts | None]]


@dataclass(frozen=True, slots=True)
class Billed:
    """Take requests that are in the ledger off the list → `Done`."""

    request_ids: Sequence[str]


Op = (
    Found
    | Reserve
    | Extend
    | Settle
    | Recount
    | Begun
    | Keep
    | HoldAgain
    | Load
    | Repair
    | Look
    | ReadSlot
    | Sweep
    | Reap
    | Billed
)


# What is answered; `Denied` is beside the limits.


@dataclass(frozen=True, slots=True)
class Held:
    """Say when it was held, and how the tightest limits stand now; None the second time."""

    at_us: int
    standing: Standing | None = None


@dataclass(frozen=True, slots=True)
class Stale:
    """A window has ended: name the limits anew."""


@dataclass(frozen=True, slots=True)
class Building:
    """Hard limits let nothing through yet."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """Windows of these scopes were not counted here: load them and ask again. None: of any."""

    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """The request was settled or given up before."""


@dataclass(frozen=True, slots=True)
class Extended:
    """So many more tokens fit, down to none."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing is held for that request."""


@dataclass(frozen=True, slots=True)
class WindowUse:
    """Say what a window has used."""

    limit: Limit
    used: int


@dataclass(frozen=True, slots=True)
class Done:
    """It is done; windows that a settled request left well used are listed."""

    windows: Sequence[WindowUse] = ()


@dataclass(frozen=True, slots=True)
class Nothing:
    """There was nothing to do."""


@dataclass(frozen=True, slots=True)
class Known:
    """It was done before."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Say how many gateways live, and which leases are gone: whether each of them was reaped."""

    num_gateways: int
    gone: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Waiting:
    """These settled unseen or are held: say which the ledger's sums have, and load again.

    It was said at `at_us`.
    """

    request_ids: Sequence[str]
    at_us: int = 0


@dataclass(frozen=True, slots=True)
class LimitSeen:
    """Say how a limit stands; `used_now` is of the newest slot of a window."""

    left: int
    whole_in_us: int
    used: int
    held: int
    used_now: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Say how limits stand, in their order."""

    limits: Sequence[LimitSeen]


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Say what one slot of a window has used and holds, if the window is counted.

    One whose limit is gone is not, nor one that is to be loaded again first.
    """

    is_counted: bool
    used: int
    held: int


@dataclass(frozen=True, slots=True)
class Orphan:
    """A request whose process died, as it was told of last."""

    request_id: str
    at_us: int
    meta: str
    told: Told


@dataclass(frozen=True, slots=True)
class Swept:
    """Say how many leases were reaped and how many are held, and what is to be billed.

    `overdue` are requests that nobody renewed in time, and when they began.
    """

    num_reaped: int
    num_leases: int
    orphans: Sequence[Orphan]
    overdue: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Reaped:
    """So many requests were ended; the others had been renewed or settled."""

    num_requests: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation went wrong: a bug of ours."""

    detail: str


Answer = (
    Held
    | Denied
    | Stale
    | Building
    | Unknown
    | Settled
    | Extended
    | Gone
    | Done
    | Nothing
    | Known
    | Kept
    | Waiting
    | Seen
    | SlotUse
    | Swept
    | Reaped
    | Failed
)


@dataclass(frozen=True, slots=True)
class CounterReply:
    """Answer operations in their order.

    `epoch` names this life of the counters: another one, or None, has forgotten what was counted.
    Until `built_us` hard limits let nothing through.
    """

    epoch: str | None
    built_us: int
    now_us: int
    answers: Sequence[Answer]

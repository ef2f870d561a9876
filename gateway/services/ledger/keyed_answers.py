"""The answer to a keyed request and its bill, which share one fate.

A row that bills a keyed run is held back until its answer is there, some milliseconds later; then
both go to the journal as one line, and from there into the database in one transaction. Nobody has
seen the end of the answer before that line was written. So:

- with the database away for however long, the answer waits on the disk with its bill, a retry that
  comes here gets it from memory, and the claim is renewed as soon as that is possible;
- a process that is killed before the line has billed nothing and answered nobody: a retry runs
  anew once the lease has passed. What the counters had been told of the run is billed as lost;
- one that is killed after it has its journal read by its next start, or by whoever shares its data
  directory. A retry that comes there first is told to wait.

A gateway elsewhere cannot read that journal: where the lease has passed and the answer is not in
the database yet, it runs the request again. Of the two runs the first that is stored is billed and
is what later retries get, and the other's bill is nothing (see `gateway.store.idempotency`).

Bounds: what waits here, in memory and on the disk, is `MAX_TENANT_BYTES` of answers a tenant, less
where many have theirs, and `MAX_BYTES` in all. An answer beyond them is not kept, only that it was
given. With the database away no key is claimed, so there come no more than were running then. What
a journal taken over holds was within the bounds of the process that wrote it. All on the event
loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from gateway.domain.idempotency import Claim, KeyedAnswer, KeyedRecord, SealedAnswer
from gateway.domain.shared_room import SharedRoom
from gateway.domain.usage import KeyedRow, Outcome, UsageRow

MAX_TENANT_BYTES: Final = 32 << 20
MAX_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class _Run:
    """Hold what is known here of a claimed request; the answer once it is in the journal."""

    claim: Claim
    record: KeyedRecord

    @property
    def size_bytes(self) -> int:
        answer = self.record.answer
        return 0 if answer is None else len(answer.sealed or b"")


class KeyedAnswers:
    """Hold rows and answers back until both can be written by `append`."""

    def __init__(
        self,
        append: Callable[[UsageRow], None],
        *,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._append = append
        self._held: dict[UUID, UsageRow | None] = {}
        self._runs: dict[tuple[UUID, str], _Run] = {}
        self._room = SharedRoom(max_bytes, of_tenant=max_tenant_bytes)

    def hold(self, claim: Claim, body_hash: bytes) -> None:
        """Hold the bill of a run back until `keep` or `let_go`."""
        self._held[claim.run_id] = None
        self._note(_Run(claim, KeyedRecord(body_hash, None)))

    def append(self, row: UsageRow) -> None:
        """Take a row for the journal; only one of a whole answer has an answer to wait for."""
        if row.request_id in self._held and row.outcome is Outcome.COMPLETED:
            self._held[row.request_id] = row
        else:
            self._append(row)

    def keep(self, claim: Claim, answer: SealedAnswer) -> bool:
        """Write an answer with its bill; False: the run has none, and nothing was written."""
        row = self._held.pop(claim.run_id, None)
        if row is None:
            return False
        if len(answer.sealed or b"") > self._room.left(claim.tenant_id):
            answer = replace(answer, content_type="", sealed=None)
        body_hash = self._runs[_name(claim)].record.body_hash
        self._append(KeyedRow.of(row, KeyedAnswer(claim.idempotency_key, body_hash, answer)))
        self._note(_Run(claim, KeyedRecord(body_hash, answer)))
        return True

    def let_go(self, claim: Claim) -> None:
        """Write the bill of a run that has no answer to keep."""
        row = self._held.pop(claim.run_id, None)
        if row is not None:
            self._append(row)

    def forget(self, claim: Claim) -> None:
        """Drop a run whose end is stored, or is not going to be."""
        run = self._runs.get(_name(claim))
        if run is None or run.claim.run_id != claim.run_id:
            return
        del self._runs[_name(claim)]
        self._room.give_back(claim.tenant_id, run.size_bytes)

    def close(self) -> None:
        """Write what bills are held back: their runs were ended from outside."""
        for row in self._held.values():
            if row is not None:
                self._append(row)
        self._held.clear()

    def found(self, row: UsageRow) -> None:
        """Learn of a row that another process has journalled."""
        if isinstance(row, KeyedRow):
            self._note(_Run(_claim_of(row), KeyedRecord(row.keyed.body_hash, None)))

    def written(self, rows: Sequence[UsageRow]) -> None:
        """Learn which rows are in the database now, their answers with them."""
        for row in rows:
            if isinstance(row, KeyedRow):
                self.forget(_claim_of(row))

    def find(self, claim: Claim) -> KeyedRecord | None:
        """Return what is known here of a request that runs, or that is only in the journal.

        Without an answer it runs, or can be had from the database soon.
        """
        run = self._runs.get(_name(claim))
        return None if run is None else run.record

    def claims(self) -> Collection[Claim]:
        """Return whose ends are not in the database yet: their leases must not pass."""
        return [run.claim for run in self._runs.values()]

    def _note(self, run: _Run) -> None:
        before = self._runs.get(_name(run.claim))
        if before is not None:
            self.forget(before.claim)
        self._runs[_name(run.claim)] = run
        self._room.take(run.claim.tenant_id, run.size_bytes)


def _name(claim: Claim) -> tuple[UUID, str]:
    return claim.key_id, claim.idempotency_key


def _claim_of(row: KeyedRow) -> Claim:
    return Claim(row.tenant_id, row.key_id, row.keyed.idempotency_key, row.request_id)

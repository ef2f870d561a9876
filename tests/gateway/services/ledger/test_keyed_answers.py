"""The answer to a keyed request and its bill: journalled as one, held in bounds, told of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

from gateway.domain.idempotency import Claim, KeyedRecord, SealedAnswer
from gateway.domain.usage import KeyedRow, Outcome, UsageRow
from gateway.services.ledger.keyed_answers import KeyedAnswers
from gateway.services.ledger.spool import Spool
from tests.gateway.usage_rows import usage_row

HASH = b"h" * 32
ANSWER = SealedAnswer(200, "application/json", bytes(range(256)))


def claim_of(row: UsageRow, key: str = "order-1") -> Claim:
    return Claim(row.tenant_id, row.key_id, key, row.request_id)


def run_to_end(keyed: KeyedAnswers, row: UsageRow, key: str = "order-1") -> bool:
    """Bring a run to its end with `ANSWER`; tell whether it was kept with a bill."""
    claim = claim_of(row, key)
    keyed.hold(claim, HASH)
    keyed.append(row)
    return keyed.keep(claim, ANSWER)


def test_a_bill_waits_for_its_answer_and_goes_with_it() -> None:
    """Until the answer is there nothing is written; then one row that holds both."""
    journal: list[UsageRow] = []
    keyed, row = KeyedAnswers(journal.append), usage_row()
    claim = claim_of(row)
    keyed.hold(claim, HASH)
    keyed.append(row)
    assert journal == []
    assert keyed.keep(claim, ANSWER)
    [written] = journal
    assert isinstance(written, KeyedRow)
    assert written.bill() == row
    assert (written.keyed.idempotency_key, written.keyed.body_hash) == ("order-1", HASH)
    assert written.keyed.answer == ANSWER


def test_other_bills_do_not_wait() -> None:
    """Requests without a key, and runs that had no whole answer, are billed at once."""
    journal: list[UsageRow] = []
    keyed = KeyedAnswers(journal.append)
    unkeyed, cancelled = usage_row(), usage_row(outcome=Outcome.CANCELLED)
    keyed.hold(claim_of(cancelled), HASH)
    for row in (unkeyed, cancelled):
        keyed.append(row)
    assert journal == [unkeyed, cancelled]
    keyed.let_go(claim_of(cancelled))
    assert journal == [unkeyed, cancelled]


def test_a_bill_without_an_answer_is_written_in_the_end() -> None:
    """What was held for an answer that does not come is let go, one by one or all at the end."""
    journal: list[UsageRow] = []
    keyed, rows = KeyedAnswers(journal.append), [usage_row(), usage_row()]
    for number, row in enumerate(rows):
        keyed.hold(claim_of(row, str(number)), HASH)
        keyed.append(row)
    keyed.let_go(claim_of(rows[0], "0"))
    assert journal == rows[:1]
    keyed.close()
    keyed.close()
    assert journal == rows


def test_an_answer_without_a_bill_is_not_written_here() -> None:
    """A run that was not billed has no row that its answer could go with."""
    keyed, claim = KeyedAnswers(lambda row: None), claim_of(usage_row())
    keyed.hold(claim, HASH)
    assert not keyed.keep(claim, ANSWER)


def test_a_retry_finds_what_is_not_stored_yet() -> None:
    """It runs, then its answer is there, until the database has it; the lease is kept up."""
    keyed, row = KeyedAnswers(lambda row: None), usage_row()
    claim = claim_of(row)
    assert keyed.find(claim) is None
    keyed.hold(claim, HASH)
    assert keyed.find(replace(claim, run_id=uuid4())) == KeyedRecord(HASH, None)
    keyed.append(row)
    keyed.keep(claim, ANSWER)
    assert keyed.find(replace(claim, run_id=uuid4())) == KeyedRecord(HASH, ANSWER)
    assert keyed.find(replace(claim, key_id=uuid4())) is None
    assert list(keyed.claims()) == [claim]
    keyed.written([usage_row(), written_of(row)])
    assert keyed.find(claim) is None
    assert list(keyed.claims()) == []


def written_of(row: UsageRow) -> UsageRow:
    """Return what the journal has of a run."""
    rows: list[UsageRow] = []
    other = KeyedAnswers(rows.append)
    run_to_end(other, row)
    return rows[0]


def test_what_a_dead_process_journalled_is_waited_for() -> None:
    """A retry is told that it runs, until what was taken over is in the database."""
    keyed, row = KeyedAnswers(lambda row: None), usage_row()
    found = written_of(row)
    keyed.found(usage_row())
    keyed.found(found)
    assert keyed.find(claim_of(row)) == KeyedRecord(HASH, None)
    assert list(keyed.claims()) == [claim_of(row)]
    keyed.written([found])
    assert keyed.find(claim_of(row)) is None


def test_what_waits_is_bounded_by_tenant_and_in_all() -> None:
    """Beyond a bound it is kept that there was an answer, and no other tenant suffers."""
    journal: list[UsageRow] = []
    keyed = KeyedAnswers(journal.append, max_tenant_bytes=600, max_bytes=1000)
    rows = [usage_row(tenant_id=UUID(int=n)) for n in (1, 1, 1, 2, 2)]
    for number, row in enumerate(rows):
        assert run_to_end(keyed, row, str(number))
    kept = [row.keyed.answer for row in journal if isinstance(row, KeyedRow)]
    too_much = SealedAnswer(200, "", None)
    assert kept == [ANSWER, ANSWER, too_much, ANSWER, too_much]
    keyed.written(journal)
    assert run_to_end(keyed, usage_row(tenant_id=UUID(int=1)))
    assert journal[-1].keyed.answer == ANSWER  # type: ignore[attr-defined]  # a `KeyedRow`


def test_the_journal_gives_both_back(tmp_path: Path) -> None:
    """A process that is killed leaves rows with answers, and rows without, as they were."""
    spool = Spool(tmp_path)
    keyed = KeyedAnswers(spool.append)
    first, second = usage_row(), usage_row(model='"keyed":{"')
    run_to_end(keyed, first)
    keyed.append(second)
    spool.close()
    successor = Spool(tmp_path)
    found, plain = successor.pending(500)
    assert isinstance(found, KeyedRow)
    assert (found.bill(), found.keyed.answer) == (first, ANSWER)
    assert plain == second
    assert type(plain) is UsageRow
    successor.close()


def test_large_answers_are_read_a_few_at_a_time(tmp_path: Path) -> None:
    """A batch ends where its answers are of megabytes, and all of them come."""
    spool = Spool(tmp_path)
    keyed = KeyedAnswers(spool.append)
    large = replace(ANSWER, sealed=bytes(1 << 20))
    for number in range(8):
        row = usage_row()
        claim = claim_of(row, str(number))
        keyed.hold(claim, HASH)
        keyed.append(row)
        keyed.keep(claim, large)
    sizes = []
    while rows := spool.pending(500):
        sizes.append(len(rows))
        spool.confirm(len(rows))
    assert sum(sizes) == 8
    assert max(sizes) < 8
    spool.close()


def test_a_row_that_is_put_aside_holds_no_answer(tmp_path: Path) -> None:
    """What an operator finds is the bill alone."""
    spool = Spool(tmp_path)
    rows: list[UsageRow] = []
    run_to_end(KeyedAnswers(rows.append), usage_row())
    spool.put_aside(rows[0])
    assert "keyed" not in (tmp_path / "refused.jsonl").read_text()
    spool.close()

"""Files that answers are collected in: what they take, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import pytest

from gateway.errors import InvalidRequest, Overloaded, TenantLimited
from gateway.services.ledger.exports import Exports

pytestmark = pytest.mark.anyio

ACME, GLOBEX, INITECH = (UUID(int=n) for n in (1, 2, 3))
MIB = b"x" * (1 << 20)


async def test_what_was_written_comes_back(tmp_path: Path) -> None:
    """More than memory holds goes through a file without a name, piece by piece."""
    exports = Exports(tmp_path / "exports")
    parts = [os.urandom(700_000) for _ in range(4)]
    async with exports.opened(ACME) as export:
        for part in parts:
            await export.write(lambda part=part: part)  # type: ignore[misc]
        assert (tmp_path / "exports").stat().st_mode & 0o777 == 0o700
        assert list((tmp_path / "exports").iterdir()) == []
        assert export.size_bytes == exports.size_bytes == 2_800_000
        pieces = [piece async for piece in export.pieces()]
    assert b"".join(pieces) == b"".join(parts)
    assert max(map(len, pieces)) == 64 << 10
    assert (exports.num_open, exports.size_bytes) == (0, 0)


async def test_exports_are_counted_by_tenant_and_in_all() -> None:
    """Two of a tenant and three of all: beyond it is theirs to wait, or ours."""
    exports = Exports(max_open=3)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(exports.opened(ACME))
        with pytest.raises(TenantLimited) as refused:
            await stack.enter_async_context(exports.opened(ACME))
        assert refused.value.retry_after_s == 10
        await stack.enter_async_context(exports.opened(GLOBEX))
        with pytest.raises(Overloaded) as full:
            await stack.enter_async_context(exports.opened(INITECH))
        assert full.value.retry_after_s == 10
    async with exports.opened(ACME):
        pass


async def test_bytes_are_counted_by_tenant_and_in_all() -> None:
    """One that is too large is the question's fault, two together the tenant's, more all of us."""
    exports = Exports(max_tenant_bytes=3 << 20, max_bytes=5 << 20)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(exports.opened(ACME))
        second = await stack.enter_async_context(exports.opened(ACME))
        others = await stack.enter_async_context(exports.opened(GLOBEX))
        for _ in range(2):
            await first.write(lambda: MIB)
        await second.write(lambda: MIB)
        with pytest.raises(TenantLimited):
            await second.write(lambda: MIB)
        with pytest.raises(InvalidRequest, match="shorter time"):
            await first.write(lambda: MIB * 2)
        # Three fifths of the two that are free.
        await others.write(lambda: MIB)
        with pytest.raises(Overloaded):
            await others.write(lambda: MIB)
        assert exports.size_bytes == 4 << 20
    assert exports.size_bytes == 0


async def test_what_one_took_the_next_may_have() -> None:
    """An export that ends gives its bytes back to the tenant's others that go on."""
    exports = Exports(max_tenant_bytes=2 << 20)
    async with exports.opened(ACME) as stays:
        for _ in range(3):
            async with exports.opened(ACME) as ends:
                await ends.write(lambda: MIB * 2)
        await stays.write(lambda: MIB * 2)
        assert exports.size_bytes == 2 << 20


async def test_a_disk_that_is_full_is_ours_to_say(tmp_path: Path) -> None:
    """What cannot be written is a 503 with its cause in the log, and takes no room."""
    file = tmp_path / "not-a-directory"
    file.touch()
    exports = Exports(file)
    with pytest.raises(Overloaded) as full:
        async with exports.opened(ACME) as export:
            await export.write(lambda: MIB)
    assert "not-a-directory" in str(full.value.detail)
    assert exports.size_bytes == 0


async def test_who_leaves_while_it_is_written_leaves_nothing() -> None:
    """A cancelled export gives its place and its room back."""
    exports = Exports()

    async def collect() -> None:
        async with exports.opened(ACME) as export:
            await export.write(lambda: MIB)
            await asyncio.Event().wait()

    collecting = asyncio.create_task(collect())
    while not exports.size_bytes:
        await asyncio.sleep(0)
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    assert (exports.num_open, exports.size_bytes) == (0, 0)

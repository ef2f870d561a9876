"""From a cookie to who is signed in.

A session's id carries our tag: what strangers make up is asked of nobody. What the store said of a
session is known for half a second, for what only reads; a change asks it anew. So a session that
ended anywhere, or whose user was demoted, changes nothing from then on, and reads for half a second
more at most. An answer that goes on, as a live view, is `watched`: once in half a second all of
them together are one query. Where the store does not answer nobody knows which are over, and after
`grace_s` all are.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from uuid import UUID

from gateway.background import Background
from gateway.credentials import SESSION_PREFIX, Secrets, Token, parse_token, token_digest
from gateway.domain.admin import Actor, Admin
from gateway.domain.page import Page, PageRequest
from gateway.domain.sign_in import Session
from gateway.errors import NotFound, StoreUnavailable
from gateway.ports import Clock, SessionStore
from gateway.services.expiring_cache import ExpiringCache
from gateway.services.one_flight import OneFlight

KNOWN_S: Final = 0.5
_MAX_KNOWN: Final = 1000


class Watched:
    """Say whether a session that something goes on for is over."""

    __slots__ = ("is_over",)

    def __init__(self) -> None:
        self.is_over = False


class Sessions:
    """Tell who is signed in, end sessions, list them."""

    def __init__(
        self,
        store: SessionStore,
        secrets: Secrets,
        organisation_id: UUID,
        *,
        grace_s: float = math.inf,
        clock: Clock = time,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._organisation_id = organisation_id
        self._clock = clock
        self._known: ExpiringCache[Session] = ExpiringCache(max_entries=_MAX_KNOWN, ttl_s=KNOWN_S)
        self._asking: OneFlight[bytes, Session | None] = OneFlight()
        self._generation = 0
        self._watched: dict[UUID, set[Watched]] = {}
        self._grace_s = grace_s
        # When it was last known of all of them.
        self._looked_at = -math.inf

    async def find(self, text: str, *, is_change: bool = False) -> Session | None:
        """Return the session of a cookie, None for none that lives. Raises: `StoreUnavailable`."""
        token = self._ours(text)
        if token is None:
            return None
        digest = token_digest(text)
        if is_change:
            return await self._ask(digest, token)
        known = self._known.get(digest, self._clock.monotonic())
        if known is not None:
            return known
        return await self._asking.ask(digest, lambda: self._ask(digest, token))

    def form_token(self, text: str) -> str:
        """Return what the forms of a session carry."""
        token = self._ours(text)
        return "" if token is None else self._secrets.form_token(token)

    def is_form_token(self, text: str, sent: str) -> bool:
        """Tell whether a form is one of this session's."""
        wanted = self.form_token(text)
        return bool(wanted) and hmac.compare_digest(wanted.encode(), sent.encode())

    async def end(self, actor: Actor, session_id: UUID) -> Session:
        """End a session at once. Raises: `NotFound`: there is none that lives."""
        session = await self._store.end(actor, self._organisation_id, session_id)
        self.forget()
        if session is None:
            raise NotFound("There is no session of that id.", param="session_id")
        return session

    async def end_own(self, admin: Admin, actor: Actor, session_id: UUID, of: UUID) -> Session:
        """End one of somebody's own sessions. Raises: `NotFound`: another's, or none."""
        page = await self._store.page(self._organisation_id, PageRequest(100), of=of)
        if session_id not in {session.id for session in page.data}:
            raise NotFound("There is no session of that id.", param="session_id")
        return await self.end(actor, session_id)

    async def page(self, request: PageRequest, *, of: UUID | None = None) -> Page[Session]:
        """Return sessions that live, the newest first; of one user or key, or of all."""
        return await self._store.page(self._organisation_id, request, of=of)

    def forget(self) -> None:
        """Know of no session any more: somebody's rights have changed."""
        self._generation += 1
        self._known.clear()
        self._asking.forget()

    @contextmanager
    def watching(self, session: Session) -> Iterator[Watched]:
        """Watch a session while something goes on for it."""
        watched = Watched()
        self._watched.setdefault(session.id, set()).add(watched)
        try:
            yield watched
        finally:
            mine = self._watched[session.id]
            mine.discard(watched)
            if not mine:
                del self._watched[session.id]

    async def look(self) -> None:
        """Find which of the watched sessions are over. Raises: `StoreUnavailable`."""
        asked = list(self._watched)
        now = self._clock.monotonic()
        living: Collection[UUID] = ()
        try:
            if asked:
                living = await self._store.living(asked)
            self._looked_at = now
        except StoreUnavailable:
            if now - self._looked_at < self._grace_s:
                raise
        for session_id in asked:
            if session_id not in living:
                for watched in self._watched.get(session_id, ()):
                    watched.is_over = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look while the block runs."""
        name = "watch over sessions"
        async with Background(name, self.look, interval_s=KNOWN_S, level=logging.INFO):
            yield

    def _ours(self, text: str) -> Token | None:
        token = parse_token(text, SESSION_PREFIX)
        return token if token is not None and self._secrets.is_tagged(token) else None

    async def _ask(self, digest: bytes, token: Token) -> Session | None:
        generation = self._generation
        session = await self._store.find(self._secrets.session_mac(token))
        if session is None:
            self._known.discard(digest)
        elif generation == self._generation:
            self._known.put(digest, session, self._clock.monotonic())
        return session

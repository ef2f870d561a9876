"""Encrypting what is stored of a response, each part bound to its tenant, response and place."""

from __future__ import annotations

import os
from typing import Final
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gateway.credentials import Secrets
from gateway.errors import ResponseNotFound

_NONCE_BYTES: Final = 12
SENT: Final = b"sent"
ANSWER: Final = b"answer"


class Seal:
    """Seal and open parts of responses."""

    def __init__(self, secrets: Secrets) -> None:
        self._cipher = AESGCM(secrets.responses_key)

    def sealed(self, tenant_id: UUID, response_id: UUID, part: bytes, plain: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, _place(tenant_id, response_id, part))

    def opened(self, tenant_id: UUID, response_id: UUID, part: bytes, sealed: bytes) -> bytes:
        """Raises: `ResponseNotFound`: it was sealed with another secret, or for another place."""
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, rest, _place(tenant_id, response_id, part))
        except InvalidTag:
            raise ResponseNotFound(detail=f"response {response_id} cannot be opened") from None


def _place(tenant_id: UUID, response_id: UUID, part: bytes) -> bytes:
    return tenant_id.bytes + response_id.bytes + part

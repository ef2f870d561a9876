"""The heads of audit logs as this machine saw them last: `<data_dir>/audit-heads.json`.

Whoever can write to the database has not this file, so a chain that was cut off or made anew is
found by it. Who restores an older database takes it away: then what is there is believed again.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import msgspec

from gateway.domain.admin import AuditHead
from gateway.errors import StartupFailed

NAME = "audit-heads.json"


class KeptHeads:
    """Implement `HeadKeeper` over a file. Raises: `StartupFailed`: it is damaged."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / NAME

    def read(self, organisation_id: UUID) -> AuditHead | None:
        head = self._read().get(str(organisation_id))
        return None if head is None else AuditHead(head[0], bytes.fromhex(head[1]))

    def write(self, organisation_id: UUID, head: AuditHead) -> None:
        heads = self._read()
        heads[str(organisation_id)] = (head.seq, head.hash.hex())
        fresh = self._path.with_name(f"{NAME}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(heads))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def _read(self) -> dict[str, tuple[int, str]]:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=dict[str, tuple[int, str]])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError:
            raise StartupFailed(
                f"{self._path} is damaged: if nobody did that on purpose, remove it"
            ) from None

"""The root of a tenant's prefix-cache chain.

Two tenants must never share a KV block, or one could time whether the other sent a prompt. The
chain of block hashes therefore starts from a secret that differs per model and tenant. Fields
are framed by their length: without that, ("org_1", "2345") would equal ("org_12345", "").
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache


def cache_salt(key: bytes, *, model: str, tenant_id: str, narrowed_by: str | None = None) -> bytes:
    """Derive the 32-byte salt of one tenant's blocks on one model.

    Requests `narrowed_by` a word of theirs share with those of the same tenant and word alone.
    """
    if narrowed_by is None:
        return _salt_of_tenant(key, model, tenant_id)
    return _salt(key, model, tenant_id, narrowed_by)


def _salt(key: bytes, *words: str) -> bytes:
    fields = [b"kv1", *(word.encode(errors="surrogatepass") for word in words)]
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hmac.new(key, framed, hashlib.sha256).digest()


# No request narrows it, so none can push another's out.
_salt_of_tenant = lru_cache(maxsize=4096)(_salt)

"""The root of a tenant's prefix-cache chain.

Two tenants must never share a KV block, or one could time whether the other sent a prompt. The
chain of block hashes therefore starts from a secret that differs per model and tenant. Fields
are framed by their length: without that, ("org_1", "2345") would equal ("org_12345", "").
"""

from __future__ import annotations

import hashlib
import hmac


def cache_salt(key: bytes, *, model: str, tenant_id: str, narrowed_by: str | None = None) -> bytes:
    """Derive the 32-byte salt of one tenant's blocks on one model.

    Requests `narrowed_by` a word of theirs share with those of the same tenant and word alone.
    """
    fields = [b"kv1", model.encode(), tenant_id.encode()]
    if narrowed_by is not None:
        fields.append(narrowed_by.encode(errors="surrogatepass"))
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hmac.new(key, framed, hashlib.sha256).digest()

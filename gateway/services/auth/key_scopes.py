"""What a key may be held to: models by name and networks of its clients."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final

from gateway.domain.address import Network, plain
from gateway.errors import InvalidRequest

_ENTRIES_MAX: Final = 100
_MODEL_CHARS_MAX: Final = 200
# Of all together: each change of a key is kept for good, with what it was and what it became.
_MODELS_BYTES_MAX: Final = 4096


def checked_models(models: object) -> tuple[str, ...] | None:
    """Return names of models as a key keeps them; None stays. Raises: `InvalidRequest`."""
    names = _entries(models, "models")
    for name in names or ():
        if not 1 <= len(name) <= _MODEL_CHARS_MAX or not name.isprintable():
            raise InvalidRequest(
                f"'models' must hold names of 1 to {_MODEL_CHARS_MAX} characters.", param="models"
            )
    if sum(len(name.encode()) for name in names or ()) > _MODELS_BYTES_MAX:
        raise InvalidRequest(
            f"'models' must hold {_MODELS_BYTES_MAX:,} bytes at most, all names together.",
            param="models",
        )
    return names


def checked_cidrs(cidrs: object) -> tuple[str, ...] | None:
    """Return networks as a key keeps them; None stays. Raises: `InvalidRequest`."""
    texts = _entries(cidrs, "cidrs")
    try:
        return None if texts is None else tuple(str(ip_network(text)) for text in texts)
    except ValueError:
        raise InvalidRequest(
            "'cidrs' must hold networks such as '10.0.0.0/8' or '2001:db8::/32', with no bits set "
            "behind the prefix, or single addresses.",
            param="cidrs",
        ) from None


def admits(cidrs: tuple[str, ...] | None, address: str | None) -> bool:
    """Tell whether a client may come from `address`; an unknown one is in no network."""
    if cidrs is None:
        return True
    if address is None:
        return False
    try:
        client = plain(ip_address(address))
    except ValueError:
        return False
    return any(client in network for network in _networks(cidrs))


def _entries(values: object, param: str) -> tuple[str, ...] | None:
    """Refuse an empty list: that it allows nothing is as likely meant as that it allows all."""
    if values is None:
        return None
    assert isinstance(values, list | tuple), "its type is checked where it is decoded"
    if not 1 <= len(values) <= _ENTRIES_MAX:
        raise InvalidRequest(
            f"'{param}' must hold 1 to {_ENTRIES_MAX} entries, or be null for no bound.",
            param=param,
        )
    return tuple(dict.fromkeys(values))


@lru_cache(maxsize=1024)
def _networks(cidrs: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in cidrs)

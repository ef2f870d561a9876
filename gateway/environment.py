"""Which variables of an environment are settings, and which one somebody meant.

A variable is refused where its name is none of ours: a limit that was spelled wrong is a limit that
is not there, and nobody learns of it. What Kubernetes sets by itself for a Service called
`sluice-…` was typed by nobody, and is passed over.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "SLUICE_"
# Read by other commands, by the examples and by the lines that a banner prints.
OTHERS: Final = ("admin_url", "admin_token", "api_key", "base_url")
# What other servers, vLLM first, call a setting.
ALIASES: Final = {
    "context_length": "max_model_len",
    "kv_cache_dtype": "kv_dtype",
    "model_path": "model",
    "num_gpu_blocks_override": "num_blocks",
    "quantization": "weight_dtype",
    "served_model_name": "model_name",
    "ssl_certfile": "tls_cert",
    "ssl_keyfile": "tls_key",
}
_SERVICE_LINK: Final = re.compile(
    r"(?:.*_)?(?:service_host|service_port(?:_.+)?|port_\d+_(?:tcp|udp|sctp)(?:_\w+)?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://")


def is_service_link(name: str, value: str) -> bool:
    """Tell a variable that Kubernetes made from one that somebody set.

    Args: `name`: without the prefix, in small letters.
    """
    if name == "port" or name.endswith("_port"):
        return _SERVICE_ADDRESS.match(value) is not None
    return _SERVICE_LINK.fullmatch(name) is not None


def unknown_variables(environment: Mapping[str, str], settings: Iterable[str]) -> list[str]:
    """Return a line for each variable that is no setting's and no command's."""
    known = {*settings, *OTHERS}
    lines = []
    for variable, value in sorted(environment.items()):
        name = variable.lower().removeprefix(PREFIX.lower())
        is_ours = variable.upper().startswith(PREFIX) and value and name not in known
        if is_ours and not is_service_link(name, value):
            lines.append(f"{variable}: no such setting{did_you_mean(name, known, PREFIX)}")
    return lines


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return how to go on from an unknown name: `; did you mean …?`."""
    meant = nearest(name, known)
    if meant is None:
        return "; the README lists them all"
    return f"; did you mean {prefix}{meant.upper() if prefix == PREFIX else meant}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` is most like, or None where it is like none."""
    known = set(known)
    alias = ALIASES.get(name)
    if alias in known:
        return alias
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return found[0] if found else None

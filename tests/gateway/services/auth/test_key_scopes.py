"""What a key may be held to, and who is held off by it."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.services.auth.key_scopes import admits, checked_cidrs, checked_models


def test_networks_are_kept_as_networks() -> None:
    """An address is a network of one, spellings become one, what comes twice is kept once."""
    texts = ["10.0.0.0/8", "192.0.2.7", "2001:DB8::/32", "10.0.0.0/8"]
    assert checked_cidrs(texts) == ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32")
    assert checked_cidrs(None) is None


@pytest.mark.parametrize(
    "cidrs", [[], ["10.0.0.1/8"], ["10.0.0.0/33"], ["x"], [""], ["10.0.0.0/8"] * 101]
)
def test_what_is_no_network_is_refused(cidrs: list[str]) -> None:
    """Bits behind the prefix are a slip; a list of nothing could mean everything."""
    with pytest.raises(InvalidRequest) as refused:
        checked_cidrs(cidrs)
    assert refused.value.param == "cidrs"


@pytest.mark.parametrize("models", [[], [""], ["a\x00"], ["m" * 201], ["a\nb"]])
def test_what_is_no_model_is_refused(models: list[str]) -> None:
    """A name of a model is one printable line."""
    with pytest.raises(InvalidRequest) as refused:
        checked_models(models)
    assert refused.value.param == "models"


def test_models_are_bounded_together() -> None:
    """A hundred names of two hundred letters of four bytes each would be kept with each change."""
    names = [f"{number:02}" + "m" * 94 for number in range(42)]
    assert checked_models([*names, "m" * 64]) is not None
    for more in (["m" * 65], ["\N{WATER WAVE}" * 17]):
        with pytest.raises(InvalidRequest, match="4,096 bytes"):
            checked_models([*names, *more])


def test_models_are_kept_in_order() -> None:
    """Once each; None is no bound."""
    assert checked_models(["b/c", "a", "b/c"]) == ("b/c", "a")
    assert checked_models(None) is None


@pytest.mark.parametrize(
    ("cidrs", "address", "admitted"),
    [
        (None, "203.0.113.1", True),
        (None, None, True),
        (("10.0.0.0/8",), "10.255.0.1", True),
        (("10.0.0.0/8",), "11.0.0.1", False),
        (("10.0.0.0/8", "192.0.2.0/24"), "192.0.2.9", True),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", True),
        (("10.0.0.0/8",), "::ffff:11.0.0.1", False),
        (("2001:db8::/32",), "2001:db8::1", True),
        (("2001:db8::/32",), "10.0.0.1", False),
        (("0.0.0.0/0", "::/0"), None, False),
        (("0.0.0.0/0", "::/0"), "a socket", False),
    ],
)
def test_a_client_is_admitted_from_its_networks(
    cidrs: tuple[str, ...] | None, address: str | None, admitted: bool
) -> None:
    """In any of them, in either spelling of IPv4; where a client is unknown, in none."""
    assert admits(cidrs, address) is admitted

"""What the command line says of values that do not fit: its own words, not a library's."""

from __future__ import annotations

import pytest

from tests.gateway.cli.admin_server import sluice_here


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tenants create a --weight x", "'--weight': it must be a number"),
        ("tenants update a --max-keys -1", "'--max-keys': it must be at least 0"),
        ("quotas set --tenant a --rpm 1.5", "'--rpm': it must be a whole number"),
        ("audit list --last 1001", "'--last': it must be at most 1000"),
        ("admin create a --role god", "'--role': 'god' is not one of 'owner', 'operator'"),
    ],
)
def test_a_value_that_does_not_fit(line: str, says: str) -> None:
    """It is said of the option what it must be."""
    done = sluice_here(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PORT", "http", "it must be a whole number"),
        ("PORT", "65536", "it must be at most 65535"),
        ("BLOCK_SIZE", "15", "it must be 16, 32 or 64"),
        ("DTYPE", "int4", "it must be 'float32', 'bfloat16' or 'float16'"),
        ("ADMIN_ALLOW_PLAIN", "perhaps", "it must be true or false"),
        # It may be of two kinds, and is told of once.
        ("TRUSTED_PROXIES", "localhost", "it must be a network, as 10.0.0.0/8"),
    ],
)
def test_a_setting_that_does_not_fit(name: str, value: str, says: str) -> None:
    """It is said in one line what the setting must be."""
    done = sluice_here("config", "check", **{f"SLUICE_{name}": value})
    assert (done.returncode, done.stderr) == (2, f"sluice: SLUICE_{name}: {says}\n")

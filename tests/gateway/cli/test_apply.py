"""`sluice apply`: a file becomes what there is, once, and nothing else is touched."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.cli.exits import CliError
from gateway.cli.tenants_file import read_document, read_file
from gateway.credentials import KEY_PREFIX, parse_token
from gateway.services.json_shape import check_shape
from tests.gateway.cli.admin_server import Server, sluice_here

EXAMPLE = Path(__file__).parents[3] / "examples/tenants.toml"


def test_the_example_is_applied_once(server: Server) -> None:
    """All of it is made, its tokens are shown, and a second time there is nothing to do."""
    first = server.ask("apply", "-f", str(EXAMPLE))
    assert first["num_done"] == first["num_to_do"] > 8
    assert {key["tenant"] + "/" + key["name"] for key in first["keys"]} == {
        "research/notebooks",
        "research/nightly",
        "visitors/demo",
    }
    assert all(parse_token(key["key"], KEY_PREFIX) for key in first["keys"])
    assert {"tenant acme", "tenant globex", "price *"} <= set(first["not_in_file"])

    again = server.sluice("apply", "-f", str(EXAMPLE))
    assert again.returncode == 0
    assert "Nothing to do." in again.stderr
    assert {line[0] for line in again.stdout.splitlines()} == {"="}
    assert server.ask("apply", "-f", str(EXAMPLE))["keys"] == []


def test_what_is_applied_is_what_the_file_says(server: Server) -> None:
    """Limits of every scope, money to the billionth, prices, promises and scopes of keys."""
    server.ask("apply", "-f", str(EXAMPLE))
    research = server.ask("tenants", "show", "research")
    assert (research["weight"], research["plan"], research["ttft_ms"]) == (2, "production", 500)
    assert (research["max_tier"], research["models"]) == ("default", ["sluice-demo"])
    assert (research["cidrs"], research["max_keys"]) == (["10.0.0.0/8", "127.0.0.1/32"], 20)
    limits = server.ask("quotas", "get", "--tenant", "research")
    assert limits["quota"]["concurrency"] == 64
    assert limits["effective"]["budget_nano_usd"] == 1_200_500_000_000
    assert limits["effective"]["budget_hard"] is False
    organisation = server.ask("quotas", "get", "--organisation")
    assert organisation["quota"]["budget_nano_usd"] == 5_000_000_000_000
    [price] = [one for one in server.ask("prices", "list") if one["model"] == "sluice-demo"]
    assert (price["cached_usd_per_mtok"], price["version"]) == ("0.075", 1)
    keys = {key["name"]: key for key in server.ask("keys", "list", "--tenant", "research")}
    assert keys["notebooks"]["cidrs"] == ["10.0.0.0/8", "127.0.0.1/32"]
    assert keys["nightly"]["admin_read"]
    assert keys["nightly"]["expires_at"] is not None
    of_key = server.ask("quotas", "get", "--key", keys["notebooks"]["kid"])
    assert of_key["quota"]["rpm"] == 600


def test_a_change_of_the_file_is_shown_and_made(server: Server, tmp_path: Path) -> None:
    """Only what differs is sent; what is no longer named of a table of limits is taken back."""
    file = tmp_path / "tenants.toml"
    file.write_text(
        "[plans.basic]\nrpm = 60\nconcurrency = 3\n"
        '[tenants.acme]\nweight = 2\nplan = "basic"\n'
        '[tenants.acme.keys.default]\nmodels = ["a"]\n'
    )
    server.ask("apply", "-f", str(file))
    file.write_text(
        "[plans.basic]\nrpm = 60\nbudget_usd = 0.5\n"
        '[tenants.acme]\nweight = 3\nplan = ""\n'
        '[tenants.acme.keys.default]\nmodels = "any"\n'
    )
    expected = [
        "~ plan basic: concurrency 3 → none, budget_usd none → 0.5",
        "~ tenant acme: weight 2 → 3, plan basic → none",
        "~ key acme/default: models [a] → none",
    ]
    dry = server.sluice("apply", "-f", str(file), "--dry-run")
    assert dry.stdout.splitlines() == expected
    assert "3 to do; nothing was changed." in dry.stderr
    assert server.ask("tenants", "show", "acme")["weight"] == 2

    assert server.lines("apply", "-f", str(file)) == expected
    assert server.ask("tenants", "show", "acme")["plan"] is None
    quota = server.ask("plans", "show", "basic")["quota"]
    assert (quota["rpm"], quota["concurrency"], quota["budget_nano_usd"]) == (60, None, 500_000_000)


def test_a_revoked_key_of_the_name_is_replaced(server: Server, tmp_path: Path) -> None:
    """Only a live key counts as being there; a token is printed beside its name."""
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.acme.keys.default]\n")
    [before] = server.ask("keys", "list", "--tenant", "acme")
    server.ask("keys", "revoke", before["kid"])
    plus, token = server.lines("apply", "-f", str(file))[1:]
    assert plus == "+ key acme/default"
    name, text = token.split("\t")
    assert name == "acme/default"
    assert parse_token(text, KEY_PREFIX) is not None
    statuses = [key["status"] for key in server.ask("keys", "list", "--tenant", "acme")]
    assert statuses == ["revoked", "active"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("[tenants.globex]\nweight = 1e9\n", "tenants.globex: 'weight'"),
        ("[tenants.globex]\nmax_keys = 1\n[tenants.globex.keys.b]\n", "globex.keys.b"),
        ("[tenants.globex.keys.b]\nmax_tier = 'flex'\nmodels = []\n", "globex.keys.b: 'models'"),
        ("[prices.x]\ninput_usd_per_mtok = 1\n", "prices.x: it has no price yet"),
    ],
)
def test_what_fails_in_the_middle_leaves_nothing(
    server: Server, tmp_path: Path, wrong: str, says: str
) -> None:
    """A refusal names its place, and neither what comes before it in the file is done nor after."""
    file = tmp_path / "tenants.toml"
    file.write_text(
        f"[plans.new]\nrpm = 1\n[tenants.acme]\nweight = 7\n[tenants.acme.keys.a]\n{wrong}"
    )
    before = server.ask("audit", "list")
    done = server.sluice("apply", "-f", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert server.ask("plans", "list") == []
    assert server.ask("tenants", "show", "acme")["weight"] == 1
    assert [key["name"] for key in server.ask("keys", "list")] == ["default", "default"]
    assert server.ask("audit", "list") == before


def test_who_sits_there_is_asked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal the plan comes first: no changes nothing, yes makes it, --yes does not ask."""
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.acme]\nweight = 2\n")
    for answer, weight in (("n", 1), ("y", 2)):
        monkeypatch.setattr("sys.stdin", _Terminal(f"{answer}\n"))
        done = server.sluice("apply", "-f", str(file))
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("~ tenant acme: weight 1 → 2") == 1
        assert "Make these 1 changes?" in done.stdout + done.stderr
        assert server.ask("tenants", "show", "acme")["weight"] == weight
    file.write_text("[tenants.acme]\nweight = 3\n")
    monkeypatch.setattr("sys.stdin", _Terminal(""))
    assert server.lines("apply", "-f", str(file), "--yes") == ["~ tenant acme: weight 2 → 3"]


def test_a_plan_that_was_agreed_to_is_what_is_done(server: Server, tmp_path: Path) -> None:
    """With a plan's fingerprint a change made since then is a conflict that shows the new plan."""
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.acme]\nweight = 2\n[tenants.globex]\nweight = 2\n")
    plan = server.ask("apply", "-f", str(file), "--dry-run")["plan"]
    server.ask("tenants", "update", "acme", "--weight", "5")
    late = server.sluice("apply", "-f", str(file), "--if-plan", plan)
    assert late.returncode == 5
    assert "~ tenant acme: weight 5 → 2" in late.stdout.splitlines()
    assert server.ask("tenants", "show", "globex")["weight"] == 1
    now = server.ask("apply", "-f", str(file), "--dry-run")["plan"]
    assert now != plan
    assert server.ask("apply", "-f", str(file), "--if-plan", now)["num_done"] == 2


class _Terminal(io.StringIO):
    """Stand for a person at the keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tenant.acme]", "the file, 'tenant': there is no such key; did you mean 'tenants'?"),
        (
            "[tenants.acme]\nwieght = 2",
            "tenants.acme, 'wieght': there is no such key; did you mean 'weight'?",
        ),
        ("[plans.basic]\nrpms = 1", "plans.basic, 'rpms'"),
        ("[tenants.acme.quota]\nrpm = -1", "tenants.acme.quota, 'rpm': it must be 0 or more"),
        ("[tenants.acme.keys.ci]\nexpires_in = '5x'", "tenants.acme.keys.ci, 'expires_in'"),
        ("[tenants.acme.keys.ci]\nmax_tier = 'gold'", "tenants.acme.keys.ci, 'max_tier'"),
        ("[tenants.acme.keys.ci]\ncidrs = ['10.0.0.1/8']", "tenants.acme.keys.ci, 'cidrs'"),
        ("[plans.basic]\nbudget_usd = 0.00000000001", "plans.basic, 'budget_usd'"),
        ("[plans.basic]\nrpm = '60'", "'rpm': it must be a whole number, not \"60\""),
        ("[plans.basic]\nbudget_usd = 'ten'", "'budget_usd': it must be a number, not \"ten\""),
        ("[tenants.acme]\nmodels = 'a'", 'a list of texts, as ["this"] or "any", not "a"'),
        ("[tenants.acme]\ncidrs = [1]", "tenants.acme, 'cidrs': it must be a list of texts"),
        ("[tenants.acme]\nmax_tier = 'gold'", '"priority" or "default" or "flex", not "gold"'),
        ("[tenants.acme]\nquota = 3", "tenants.acme, 'quota': it must be a table, not 3"),
        ("[tenants.acme.keys.ci]\nallows_batch = 'yes'", 'it must be true or false, not "yes"'),
        ("[tenants.acme.keys.ci]\nexpires_at = 2027-01-31", "a time with its zone, as 2027-01-31T"),
        ("organisation = 3", "organisation: it must be a table, not 3"),
        ("[organisation]", "organisation: its limits are in a table, [organisation.quota]"),
        ("[tenants.'Not A Name']", "tenants, 'Not A Name'"),
        ("[organisation]\nrpm = 1", "organisation, 'rpm'"),
        ("tenants = 1", "tenants: write a table for each by its name, [tenants.NAME]"),
        ("[[tenants]]\nname = 'a'", "by its name, [tenants.NAME], not [[tenants]]"),
        ("[tenants]\nacme = 1", "tenants, 'acme': it must be a table"),
        ("[plans.basic]\nbudget_usd = 1e9999999", "more than a trillion dollars"),
        ("x = [", "is not TOML"),
        ("x = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("x = " + "[" * 5000, "is not TOML: maximum recursion"),
    ],
)
def test_a_mistake_is_named_by_table_and_key(tmp_path: Path, text: str, says: str) -> None:
    """A typing error changes nothing and is told with its place."""
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    with pytest.raises(CliError) as failed:
        read_file(file)
    assert says in str(failed.value)


def test_a_file_that_no_server_takes_is_not_read(tmp_path: Path) -> None:
    """One of more than 4 MiB is refused for its size, before anybody looks whether it is TOML."""
    file = tmp_path / "tenants.toml"
    file.write_text("[" * ((4 << 20) + 1))
    with pytest.raises(CliError, match=r"has more than 4 MiB.*split it"):
        read_file(file)
    file.write_text("[tenants.acme]\n" + "#" * ((4 << 20) - 20))
    assert [tenant.name for tenant in read_file(file).tenants] == ["acme"]


@pytest.mark.parametrize(("num_tenants", "num_keys"), [(5000, 0), (2500, 1), (1, 4999)])
def test_as_many_as_may_be_applied_fit_into_a_body(num_tenants: int, num_keys: int) -> None:
    """A file of five thousand tenants and keys, each with limits, is a body that is read."""
    keys = {f"key-{n}": {"expires_in": "90d", "quota": {"rpm": n}} for n in range(num_keys)}
    tenants = {
        f"tenant-{n}": {"weight": Decimal("1.5"), "quota": {"daily_tokens": n}, "keys": keys}
        for n in range(num_tenants)
    }
    body = read_document({"tenants": tenants}).body()
    check_shape(json.dumps(body).encode())
    assert body["tenants"]["tenant-0"]["quota"] == {"daily_tokens": 0}


def test_a_plan_that_is_nowhere_is_a_mistake(server: Server, tmp_path: Path) -> None:
    """What refers to nothing is found before anything is changed; so is a missing file."""
    file = tmp_path / "tenants.toml"
    file.write_text('[plans.new]\nrpm = 1\n[tenants.acme]\nplan = "nope"\n')
    done = server.sluice("apply", "-f", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no plan 'nope'" in done.stderr
    assert server.ask("plans", "list") == []
    assert sluice_here("apply", "-f", str(tmp_path / "no.toml")).returncode == 2

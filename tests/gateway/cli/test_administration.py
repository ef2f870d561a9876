"""Plans, limits, prices, keys' scopes, admin tokens, audit, usage: as an operator types them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from decimal import Decimal

import pytest

from gateway.cli import admin_client
from gateway.cli.admin_client import AdminAccess, call_all
from gateway.cli.options import nano_to_usd, usd_to_nano
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, parse_token
from tests.gateway.cli.admin_server import Server, sluice_here


def test_a_plan_is_made_changed_used_and_removed(server: Server) -> None:
    """Tenants inherit a plan's limits; it can go once nobody is on it."""
    made = server.ask(
        *("plans", "create", "basic", "--rpm", "60", "--concurrency", "3"),
        *("--budget-usd", "25.15", "--budget-window", "week", "--soft-budget"),
    )
    quota = made["quota"]
    assert (quota["rpm"], quota["concurrency"], quota["daily_tokens"]) == (60, 3, None)
    assert quota["budget_nano_usd"] == 25_150_000_000
    assert (quota["budget_window"], quota["budget_hard"]) == ("week", False)

    changed = server.ask("plans", "update", "basic", "--rpm", "61", "--unset", "concurrency,budget")
    assert (changed["quota"]["rpm"], changed["quota"]["concurrency"]) == (61, None)
    assert (changed["quota"]["budget_nano_usd"], changed["version"]) == (None, 2)
    assert server.ask("plans", "show", "basic") == changed
    assert server.ask("plans", "list") == [changed]
    assert server.lines("plans", "list")[0].startswith("name\trpm\t")
    assert server.lines("plans", "list", "--no-header")[0].startswith("basic\t61\t-\t")

    assert server.ask("tenants", "update", "acme", "--plan", "basic")["plan"] == "basic"
    assert server.ask("quotas", "get", "--tenant", "acme")["effective"]["rpm"] == 61
    refused = server.sluice("plans", "delete", "basic")
    assert (refused.returncode, refused.stdout) == (5, "")
    assert server.ask("tenants", "update", "acme", "--no-plan")["plan"] is None
    assert server.lines("plans", "delete", "basic") == ["basic"]
    assert server.ask("tenants", "create", "new", "--weight", "2")["plan"] is None


def test_ceilings_of_a_tenant(server: Server) -> None:
    """They are set when it is made, changed one by one, taken back, and met by its keys."""
    bounds = ["--max-tier", "flex", "--allow-model", "a", "--allow-model", "b", "--max-keys", "1"]
    made = server.ask("tenants", "create", "new", *bounds, "--allow-address", "10.0.0.0/8")
    assert (made["max_tier"], made["models"], made["cidrs"], made["max_keys"]) == (
        *("flex", ["a", "b"], ["10.0.0.0/8"]),
        1,
    )
    above = server.sluice("keys", "create", "--tenant", "new", "--models", "c")
    assert (above.returncode, above.stdout) == (2, "")
    assert "none of the models of this tenant" in above.stderr
    assert server.ask("keys", "create", "--tenant", "new")["max_tier"] == "flex"
    assert server.sluice("keys", "create", "--tenant", "new").returncode == 2
    free = ["--any-model", "--any-address", "--max-keys", "0"]
    freed = server.ask("tenants", "update", "new", *free)
    assert (freed["max_tier"], freed["models"], freed["cidrs"], freed["max_keys"]) == (
        *("flex", None, None),
        None,
    )


@pytest.mark.parametrize("scope", ["tenant", "key", "plan", "organisation", "platform"])
def test_limits_of_every_scope(server: Server, scope: str) -> None:
    """What is named is set, the rest stays, and it can be taken back."""
    named = {"tenant": ["acme"], "plan": ["basic"], "key": []}.get(scope, [])
    if scope == "plan":
        server.ask("plans", "create", "basic")
    if scope == "key":
        named = [server.ask("keys", "list", "--tenant", "acme")[0]["kid"]]
    of = (f"--{scope}", *named)
    assert server.ask("quotas", "set", *of, "--rpm", "5", "--input-tpm", "7")["quota"]["rpm"] == 5
    state = server.ask(
        *("quotas", "set", *of, "--output-tpm", "8", "--queued-tokens", "9", "--unset", "rpm"),
        *("--daily-tokens", "10", "--monthly-tokens", "11", "--budget-usd", "0"),
    )
    assert state["scope"]["kind"] == scope
    budget = {"budget_window": "month", "budget_hard": True}
    assert state["effective"] == state["quota"] | budget
    assert {name: value for name, value in state["quota"].items() if value is not None} == {
        "input_tpm": 7,
        "output_tpm": 8,
        "queued_tokens": 9,
        "daily_tokens": 10,
        "monthly_tokens": 11,
        "budget_nano_usd": 0,
    }
    assert server.ask("quotas", "get", *of) == state


def test_an_override_lies_over_limits_for_a_while(server: Server) -> None:
    """It shows beside what is set, with its end and reason, and can be taken away."""
    server.ask("quotas", "set", "--tenant", "acme", "--rpm", "5", "--budget-usd", "1.5")
    state = server.ask(
        *("quotas", "override", "--tenant", "acme", "--rpm", "7"),
        *("--for", "2h", "--reason", "launch day"),
    )
    assert (state["quota"]["rpm"], state["effective"]["rpm"]) == (5, 7)
    assert state["override"]["reason"] == "launch day"
    shown = server.sluice("quotas", "get", "--tenant", "acme")
    assert "rpm\t5\t7\t7" in shown.stdout.splitlines()
    assert "budget_usd\t1.5\t-\t1.5" in shown.stdout.splitlines()
    assert "launch day" in shown.stderr
    cleared = server.ask("quotas", "override", "--tenant", "acme", "--clear")
    assert (cleared["override"], cleared["effective"]["rpm"]) == (None, 5)


def test_a_conflict_shows_both_sides(server: Server) -> None:
    """Who changes what somebody else has changed since sees theirs and what is there: exit 5."""
    version = server.ask("tenants", "show", "acme")["version"]
    server.ask("tenants", "update", "acme", "--weight", "2", "--if-version", str(version))
    stale = server.sluice(
        "tenants", "update", "acme", "--weight", "3", "--if-version", str(version)
    )
    assert (stale.returncode, stale.stdout) == (5, "")
    _, current, yours = stale.stderr.splitlines()
    assert json.loads(current.removeprefix("current: "))["weight"] == 2
    assert json.loads(yours.removeprefix("yours: "))["weight"] == 3


def test_a_key_has_scopes_and_can_be_rotated(server: Server) -> None:
    """Scopes are given, changed and lifted; a rotation keeps the id and gives a new token."""
    made = server.ask(
        *("keys", "create", "--tenant", "acme", "--name", "ci", "--models", "llama, qwen"),
        *("--cidrs", "10.0.0.0/8,127.0.0.1", "--no-batch", "--admin-read"),
    )
    assert (made["models"], made["cidrs"]) == (["llama", "qwen"], ["10.0.0.0/8", "127.0.0.1/32"])
    assert (made["allows_batch"], made["admin_read"]) == (False, True)

    update = ("keys", "update", made["kid"])
    changed = server.ask(*update, "--any-model", "--batch", "--no-admin-read", "--name", "cd")
    assert (changed["models"], changed["cidrs"]) == (None, made["cidrs"])
    assert (changed["allows_batch"], changed["admin_read"]) == (True, False)
    assert server.ask("keys", "show", made["id"]) == changed
    assert server.ask(*update, "--any-address", "--max-tier", "flex")["cidrs"] is None

    rotated = server.sluice("keys", "rotate", made["kid"], "--grace", "60s")
    token = parse_token(rotated.stdout.strip(), KEY_PREFIX)
    assert token is not None
    assert token.kid == made["kid"]
    assert "The old secret works until" in rotated.stderr
    at_once = server.sluice("keys", "rotate", made["kid"], "--grace", "0")
    assert "The old secret has ended" in at_once.stderr
    assert len({made["key"], rotated.stdout.strip(), at_once.stdout.strip()}) == 3


def test_prices_are_exact_and_versioned(server: Server) -> None:
    """Decimals arrive digit by digit; what is not named is as in the version before."""
    first = server.sluice("prices", "set", "llama", "--output-usd-per-mtok", "0.6")
    assert first.returncode == 2
    assert "input_usd_per_mtok" in first.stderr
    server.ask(
        *("prices", "set", "llama", "--input-usd-per-mtok", "0.15"),
        *("--cached-usd-per-mtok", "0.000000001", "--output-usd-per-mtok", "0.6"),
    )
    second = server.ask("prices", "set", "llama", "--flex", "0.25", "--priority", "1.5")
    assert second["version"] == 2
    assert (second["input_usd_per_mtok"], second["output_usd_per_mtok"]) == ("0.15", "0.6")
    assert second["cached_usd_per_mtok"] == "0.000000001"
    assert (second["flex_multiplier"], second["priority_multiplier"]) == ("0.25", "1.5")
    newest = {one["model"]: one["version"] for one in server.ask("prices", "list")}
    assert newest["llama"] == 2
    assert len(server.ask("prices", "list", "--all")) == len(newest) + 1


def test_admin_tokens_and_the_audit_log(server: Server) -> None:
    """A token is shown once and ends when it is revoked; who did what is on record, and whole."""
    made = server.sluice("tokens", "create", "grafana", "--role", "viewer", "--expires-in", "90d")
    token = made.stdout.strip()
    assert parse_token(token, ADMIN_PREFIX) is not None
    there = {"SLUICE_ADMIN_URL": server.url, "SLUICE_ADMIN_TOKEN": token}
    assert sluice_here("tenants", "list", **there).returncode == 0
    assert sluice_here("tenants", "update", "acme", "--weight", "2", **there).returncode == 4
    [listed] = [one for one in server.ask("tokens", "list") if one["name"] == "grafana"]
    assert (listed["role"], listed["tenant"]) == ("viewer", None)
    server.ask("tokens", "revoke", listed["kid"])
    assert sluice_here("tenants", "list", **there).returncode == 4

    [newest, *_] = server.ask("audit", "list", "--last", "1")
    assert (newest["action"], newest["object_id"]) == ("token.revoke", listed["id"])
    assert len(server.ask("audit", "list", "--all")) == newest["seq"]
    assert server.ask("audit", "list", "--action", "token.create", "--all")
    assert server.lines("audit", "list", "--last", "2")[2].split("\t")[0] == str(newest["seq"] - 1)
    seq, head = server.lines("audit", "verify")[0].split("\t")
    assert (seq, len(head)) == (str(newest["seq"]), 64)
    kept = server.lines("audit", "head")[0].split("\t")[0]
    assert kept == f"{seq}:{head}"
    asked = server.ask("audit", "head")
    assert (asked["seq"], asked["hash"], asked["at"]) == (int(seq), head, newest["at"])
    assert server.lines("audit", "verify", "--head", kept) == [f"{seq}\t{head}"]
    gone = server.sluice("audit", "verify", "--head", f"{seq}:{'0' * 64}")
    assert gone.returncode == 1
    assert f"record {seq} of the audit log is not what it was" in gone.stderr
    assert server.sluice("audit", "verify", "--head", "x").returncode == 2


def test_usage_and_settings_are_shown(server: Server) -> None:
    """A server that nobody used says so, as a table, as JSON and as CSV; secrets stay hidden."""
    empty = server.sluice("usage", "--tenant", "acme", "--group-by", "day,model")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "Nothing was used." in empty.stderr
    assert server.ask("usage")["total"]["requests"] == 0
    csv = server.lines("usage", "--csv", "--from", "2026-01-01", "--group-by", "tenant")
    assert csv == ["tenant,input_tokens,cached_tokens,output_tokens,nano_usd,requests"]
    assert "port\t8000" in server.lines("config", "show")
    assert server.ask("config", "show")["port"] == 8000


def test_long_lists_are_fetched_page_by_page(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However small the pages, a list is whole and in order."""
    for name in ("a", "b", "c"):
        server.ask("tenants", "create", name)
    monkeypatch.setattr(admin_client, "_PAGE_ROWS", 2)
    rows = call_all(AdminAccess(server.url, server.admin_token), "/tenants")
    assert [row["name"] for row in rows] == ["a", "acme", "b", "c", "globex"]


_USE = {
    "scope": {"kind": "tenant", "id": "i", "name": "acme"},
    "limits": [
        {
            "metric": "budget_nano_usd",
            "limit": 1_500_000_000,
            "used": 500_000_001,
            "held": 0,
            "remaining": 999_999_999,
            "resets_at": "2026-12-01T00:00:00Z",
        },
        {
            "metric": "rpm",
            "limit": 60,
            "used": 3,
            "held": 1,
            "remaining": 56,
            "resets_at": None,
        },
    ],
}


class _Canned(http.server.BaseHTTPRequestHandler):
    """Answer every request with `_USE`."""

    def do_GET(self) -> None:
        body = json.dumps(_USE).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def canned_url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Canned) as canned:
        thread = threading.Thread(target=canned.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{canned.server_port}"
        canned.shutdown()
        thread.join()


def test_use_of_limits_is_a_table_in_dollars(canned_url: str) -> None:
    """A person sees dollars, a script the server's own numbers."""
    there = {"SLUICE_ADMIN_URL": canned_url, "SLUICE_ADMIN_TOKEN": "x"}
    done = sluice_here("quotas", "usage", "--tenant", "acme", **there)
    assert done.stdout.splitlines() == [
        "metric\tlimit\tused\theld\tremaining\tresets_at",
        "budget_usd\t1.5\t0.500000001\t0\t0.999999999\t2026-12-01T00:00:00Z",
        "rpm\t60\t3\t1\t56\t-",
    ]
    as_json = sluice_here("quotas", "usage", "--tenant", "acme", "--json", **there)
    assert json.loads(as_json.stdout) == _USE


@pytest.mark.parametrize(
    "arguments",
    [
        ("quotas", "set", "--rpm", "5"),
        ("quotas", "set", "--tenant", "a", "--key", "b", "--rpm", "5"),
        ("quotas", "set", "--tenant", "a"),
        ("quotas", "set", "--tenant", "a", "--rpm", "-1"),
        ("quotas", "set", "--tenant", "a", "--rpm", "1", "--unset", "rpm"),
        ("quotas", "set", "--tenant", "a", "--unset", "rps"),
        ("quotas", "set", "--tenant", "a", "--budget-usd", "0.00000000001"),
        ("quotas", "set", "--tenant", "a", "--budget-usd", "nan"),
        ("quotas", "set", "--tenant", "a", "--budget-usd", "-1"),
        ("quotas", "override", "--tenant", "a", "--rpm", "1", "--for", "2h"),
        ("quotas", "override", "--tenant", "a", "--rpm", "1", "--reason", "r"),
        ("quotas", "override", "--tenant", "a", "--clear", "--rpm", "1"),
        ("quotas", "override", "--plan", "a", "--rpm", "1", "--for", "2h", "--reason", "r"),
        ("tenants", "update", "a", "--plan", "p", "--no-plan"),
        ("tenants", "update", "a"),
        ("tenants", "update", "a", "--allow-model", "m", "--any-model"),
        ("tenants", "update", "a", "--allow-address", "::/0", "--any-address"),
        ("keys", "update", "a"),
        ("keys", "update", "a", "--models", "m", "--any-model"),
        ("keys", "rotate", "a", "--grace", "soon"),
        ("prices", "set", "m"),
        ("prices", "set", "m", "--input-usd-per-mtok", "cheap"),
        ("tokens", "create", "t"),
        ("tokens", "create", "t", "--role", "king"),
        ("usage", "--csv", "--json"),
        ("plans", "update", "p"),
        ("apply",),
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    """A mistake in the line is told before any server is looked for."""
    assert sluice_here(*arguments).returncode == 2


@pytest.mark.parametrize(
    ("nano", "usd"),
    [(0, "0"), (1, "0.000000001"), (1_500_000_000, "1.5"), (10**18, "1000000000")],
)
def test_dollars_are_written_exactly(nano: int, usd: str) -> None:
    """No digit is lost between billionths and dollars, in either direction."""
    assert nano_to_usd(nano) == usd
    assert usd_to_nano(Decimal(usd)) == nano


LISTS = ("tenants", "orgs", "keys", "plans", "prices", "tokens", "audit")


@pytest.mark.parametrize("what", LISTS)
def test_a_piped_list_begins_with_its_columns(server: Server, what: str) -> None:
    """Whoever reads it need not count columns; `--no-header` leaves the line out."""
    server.ask("orgs", "create", "umbrella")
    server.ask("plans", "create", "basic")
    server.ask("prices", "set", "other", "--input-usd-per-mtok", "1", "--output-usd-per-mtok", "2")
    header, *rows = server.lines(what, "list")
    assert rows == server.lines(what, "list", "--no-header")
    assert rows
    assert all(row.count("\t") == header.count("\t") for row in rows)
    assert header not in rows
    assert {"name", "model", "seq", "kid"} & set(header.split("\t"))


def test_a_deleted_tenant_is_gone_and_its_usage_is_not(server: Server) -> None:
    """Its name is printed as its records have it from then on; the note says what ended."""
    server.ask("tenants", "create", "new")
    server.ask("keys", "create", "--tenant", "new")
    done = server.sluice("tenants", "delete", "new")
    assert done.returncode == 0, done.stderr
    name = done.stdout.strip()
    assert name.startswith("new~")
    assert "Revoked: keys 1, admin tokens 0." in done.stderr
    assert server.sluice("tenants", "delete", "new").returncode == 3
    assert server.sluice("keys", "create", "--tenant", "new").returncode == 3
    assert name not in [one["name"] for one in server.ask("tenants", "list")]
    assert server.sluice("usage", "--tenant", name).returncode == 0
    assert server.ask("audit", "list", "--tenant", name)[0]["action"] == "tenant.delete"
    assert server.ask("tenants", "create", "new")["version"] == 1
    assert server.ask("keys", "list", "--tenant", "new") == []
    gone = server.ask("tenants", "delete", "new", "--if-version", "1")
    assert (gone["revoked_keys"], gone["revoked_tokens"]) == (0, 0)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SLUICE_ADMIN_TOKN", "did you mean SLUICE_ADMIN_TOKEN?"),
        ("SLUICE_DATADIR", "did you mean SLUICE_DATA_DIR?"),
        ("SLUICE_MAX_NUM_SEQ", "did you mean SLUICE_MAX_NUM_SEQS?"),
    ],
)
def test_a_variable_that_is_none_ends_administration_too(
    server: Server, variable: str, meant: str
) -> None:
    """A server that was named in a misspelled variable is not the one that would be changed.

    What is a server's own setting is no mistake in the shell that starts it.
    """
    mine = {"SLUICE_DATA_DIR": str(server.data_dir), "SLUICE_PORT": "8000"}
    assert sluice_here("tenants", "list", **mine).returncode == 0
    done = sluice_here("tenants", "list", **mine, **{variable: "x"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sluice: {variable}: no such setting; {meant}\n"

"""`sluice tenants` and `sluice keys`, run as a user runs them, against a real admin API."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token, parse_token
from tests.gateway.cli.admin_server import Server, sluice, sluice_here

_ROOT = Path(__file__).parents[3]


def test_tenants_and_keys_by_data_directory(server: Server) -> None:
    """A server of this machine needs no token: make a tenant, a key, list and revoke."""
    here = {"SLUICE_DATA_DIR": str(server.data_dir)}
    made = sluice("tenants", "create", "research", "--weight", "2", "--json", **here)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["weight"] == 2.0

    listed = json.loads(sluice("tenants", "list", "--json", **here).stdout)
    assert [tenant["name"] for tenant in listed] == ["acme", "globex", "research"]

    issued = sluice(
        *("keys", "create", "--tenant", "research", "--name", "ci"),
        *("--expires-in", "90s", "--json"),
        **here,
    )
    key = json.loads(issued.stdout)
    assert parse_token(key["key"], KEY_PREFIX) is not None
    assert (key["tenant"], key["name"], key["status"]) == ("research", "ci", "active")

    revoked = sluice("keys", "revoke", key["id"], "--json", **here)
    assert json.loads(revoked.stdout)["status"] == "revoked"
    shown = json.loads(sluice("keys", "list", "--tenant", "research", "--json", **here).stdout)
    assert [(one["kid"], one["status"]) for one in shown] == [(key["kid"], "revoked")]


def test_a_tenant_is_changed_and_its_key_has_a_tier(server: Server) -> None:
    """Weights and promises are set and, by 0, taken back; a key is made with its best tier."""
    here = {"SLUICE_DATA_DIR": str(server.data_dir)}
    sluice("tenants", "create", "research", "--ttft-ms", "500", "--tpot-ms", "20", **here)
    done = sluice(
        *("tenants", "update", "research", "--weight", "3"),
        *("--max-gap-ms", "60", "--ttft-ms", "0", "--json"),
        **here,
    )
    assert done.returncode == 0, done.stderr
    [listed] = [
        tenant
        for tenant in json.loads(sluice("tenants", "list", "--json", **here).stdout)
        if tenant["name"] == "research"
    ]
    assert listed == json.loads(done.stdout)
    promises = [listed[name] for name in ("weight", "ttft_ms", "tpot_ms", "max_gap_ms")]
    assert promises == [3.0, None, 20.0, 60.0]

    issued = sluice(
        "keys", "create", "--tenant", "research", "--max-tier", "priority", "--json", **here
    )
    assert json.loads(issued.stdout)["max_tier"] == "priority"


def test_an_org_is_made_and_tenants_belong_to_it(server: Server) -> None:
    """Its weight is set and shown, tenants go in and out, and it is removed once it is empty."""
    here = {"SLUICE_DATA_DIR": str(server.data_dir)}
    made = sluice("orgs", "create", "umbrella", "--weight", "4", **here)
    assert (made.returncode, made.stdout) == (0, "umbrella\n"), made.stderr
    sluice("tenants", "create", "research", "--org", "umbrella", **here)
    moved = sluice("tenants", "update", "acme", "--org", "umbrella", "--json", **here)
    assert json.loads(moved.stdout)["org"] == "umbrella"
    changed = sluice("orgs", "update", "umbrella", "--weight", "2.5", "--json", **here)
    assert json.loads(changed.stdout)["weight"] == 2.5
    [listed] = json.loads(sluice("orgs", "list", "--json", **here).stdout)
    assert (listed["name"], listed["weight"], listed["version"]) == ("umbrella", 2.5, 2)
    assert sluice("orgs", "delete", "umbrella", **here).returncode != 0
    for tenant in ("acme", "research"):
        left = sluice("tenants", "update", tenant, "--no-org", "--json", **here)
        assert json.loads(left.stdout)["org"] is None
    assert sluice("orgs", "delete", "umbrella", **here).returncode == 0
    assert json.loads(sluice("orgs", "list", "--json", **here).stdout) == []
    missing = sluice("tenants", "update", "acme", "--org", "umbrella", **here)
    assert "There is no org of that name." in missing.stderr


def test_a_scheduler_is_set_and_shown(server: Server) -> None:
    """Values are sent as JSON has them, and what was set is shown: whole as JSON, or laid out."""
    here = {"SLUICE_DATA_DIR": str(server.data_dir)}
    done = sluice(
        *("scheduler", "set", "--policy", "fcfs", "--preset", "low-latency", "--model", "sim"),
        *("--set", "composer.max_step_s=0.05", "--set", "composer.dynamic_chunk=false"),
        *("--set", "composer.kv_reserve=max", "--set", "fairness.prices.output=4", "--json"),
        **here,
    )
    assert done.returncode == 0, done.stderr
    [put] = json.loads(done.stdout)
    composer = put["config"]["composer"]
    assert put["policy"] == "fcfs"
    assert (composer["max_step_s"], composer["dynamic_chunk"]) == (0.05, False)
    assert (composer["kv_reserve"], put["config"]["fairness"]["prices"]["output"]) == ("max", 4)

    [shown] = json.loads(sluice("scheduler", "show", "--json", **here).stdout)
    [band] = shown["state"]["bands"]
    assert [tenant["tenant"] for tenant in band["tenants"]] == ["acme"]
    lines = sluice("scheduler", "show", **here).stdout.splitlines()
    # Its steps never end, so what was set is shown and not yet in force.
    assert "policy\tvtc\toperators" in lines
    assert "config.composer.max_bypasses\t0\toperators" in lines
    assert "config.fairness.unit\ttime\tsettings" in lines
    assert "state.rejections.overloaded\t3\t-" in lines
    assert lines[-1] == "acme\t-\tdefault\t2\t7.5\t1\t40\t0\t15"
    stale = sluice("scheduler", "reset", "--if-version", "0", **here)
    assert stale.returncode != 0
    [reset] = json.loads(sluice("scheduler", "reset", "--model", "sim", "--json", **here).stdout)
    assert (reset["policy"], reset["set"]) == ("vtc", {})


def test_data_is_on_stdout_and_notes_are_on_stderr(server: Server) -> None:
    """A script can take the token from stdout as it is; a pipe gets rows with tabs."""
    here = {"SLUICE_DATA_DIR": str(server.data_dir)}
    made = sluice("keys", "create", "--tenant", "acme", **here)
    assert parse_token(made.stdout.rstrip("\n"), KEY_PREFIX) is not None
    assert "shown this once" in made.stderr
    rows = sluice("tenants", "list", **here).stdout.splitlines()
    assert [row.split("\t")[:2] for row in rows] == [
        ["name", "weight"],
        ["acme", "1"],
        ["globex", "1"],
    ]


def test_a_server_is_reached_by_url_and_token(server: Server) -> None:
    """The admin token of the first start works from elsewhere; a flag is above the environment."""
    there = {"SLUICE_ADMIN_URL": server.url, "SLUICE_ADMIN_TOKEN": server.admin_token}
    assert sluice("tenants", "list", **there).returncode == 0
    wrong = sluice(
        *("tenants", "list", "--data-dir", str(server.data_dir)),
        SLUICE_ADMIN_URL="http://127.0.0.1:1",
        SLUICE_ADMIN_TOKEN="x",
    )
    assert wrong.returncode == 0, wrong.stderr
    there["SLUICE_ADMIN_TOKEN"] = new_token(ADMIN_PREFIX).text
    assert sluice("tenants", "list", **there).stderr == (
        f"sluice: the server at {server.url} does not take the admin token of SLUICE_ADMIN_TOKEN: "
        "it is another's, revoked or expired\n"
    )


def test_exit_codes_say_what_went_wrong(server: Server) -> None:
    """Usage 2, not found 3, not allowed 4, conflict 5: each with one line on stderr."""
    here = {"SLUICE_DATA_DIR": str(server.data_dir)}
    stranger = {"SLUICE_ADMIN_URL": server.url, "SLUICE_ADMIN_TOKEN": new_token(ADMIN_PREFIX).text}
    cases = [
        (2, ("tenants", "create", "Not A Name"), here),
        (2, ("tenants", "update", "acme", "--weight", "0"), here),
        (2, ("scheduler", "set", "--policy", "nope"), here),
        (2, ("scheduler", "set", "--set", "composer.max_step_s=1e999"), here),
        (3, ("scheduler", "set", "--policy", "fcfs", "--model", "nope"), here),
        (3, ("tenants", "update", "nobody", "--weight", "2"), here),
        (3, ("tenants", "update", "../keys", "--weight", "2"), here),
        (3, ("keys", "create", "--tenant", "nobody"), here),
        (3, ("keys", "revoke", "../tenants"), here),
        (4, ("tenants", "list"), stranger),
        (4, ("tenants", "list"), {"SLUICE_ADMIN_URL": server.url}),
        (5, ("tenants", "create", "acme"), here),
    ]
    for code, arguments, environment in cases:
        done = sluice_here(*arguments, **environment)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("sluice: ")
        assert done.stderr.count("\n") == 1


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    """No server in the directory, and none at the URL: one line, exit code 1."""
    for environment in (
        {"SLUICE_DATA_DIR": str(tmp_path)},
        {"SLUICE_ADMIN_URL": "http://127.0.0.1:1", "SLUICE_ADMIN_TOKEN": "x"},
        {"SLUICE_ADMIN_URL": "nonsense", "SLUICE_ADMIN_TOKEN": "x"},
    ):
        done = sluice_here("keys", "list", **environment)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("tenants", "update", "acme"),
        ("tenants", "update", "acme", "--weight", "inf"),
        ("tenants", "create", "a", "--ttft-ms", "nan"),
        ("keys", "create", "--tenant", "acme", "--max-tier", "batch"),
        ("scheduler", "set"),
        ("scheduler", "set", "--model", "m"),
        ("scheduler", "set", "--set", "composer.max_step_s"),
        ("scheduler", "set", "--set", "=1"),
        ("scheduler", "set", "--set", "policy=a", "--set", "policy.b=1"),
    ],
)
def test_what_says_nothing_or_nonsense_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    """A change without a change, and a value that cannot be, need no server to be refused."""
    assert sluice_here(*arguments).returncode == 2


@pytest.mark.parametrize("life", ["", "0", "-5s", "90x", "s", "1e3", "9" * 400])
def test_a_bad_duration_is_wrong_usage(life: str) -> None:
    """What is no duration is refused before any server is looked for."""
    done = sluice_here("keys", "create", "--tenant", "acme", "--expires-in", life)
    assert done.returncode == 2


def test_help_and_version_load_nothing_heavy() -> None:
    """The command answers without torch, SQLAlchemy, Starlette or an HTTP client."""
    heavy = ["torch", "numpy", "sqlalchemy", "starlette", "httpx", "pydantic", "uvicorn", "rich"]
    probe = (
        "import sys\nfrom gateway.cli.main import main\nsys.argv = ['sluice', '{0}']\n"
        "try:\n    main()\nexcept SystemExit as exc:\n    assert not exc.code\n"
        "loaded = [m for m in {1} if m in sys.modules]\nassert not loaded, loaded"
    )
    for flag in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", probe.format(flag, heavy)],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "sluice" in done.stdout


def test_serve_is_a_command() -> None:
    """`sluice serve --help` shows the flags of the function that serves."""
    help_text = sluice("serve", "--help").stdout
    assert "--banner" in help_text

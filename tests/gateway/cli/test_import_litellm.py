"""`sluice import litellm`: what teams, keys and budgets become, and that nothing goes unsaid."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.cli.exits import CliError
from gateway.cli.litellm import Imported, import_litellm
from gateway.cli.litellm_files import read_litellm
from gateway.cli.tenants_file import read_document
from gateway.cli.toml_text import toml_text
from tests.gateway.cli.admin_server import Server, sluice_here

HERE = Path(__file__).parent / "litellm"
FILES = [HERE / "config.yaml", HERE / "export.json"]


@pytest.fixture(scope="module")
def imported() -> Imported:
    return import_litellm(read_litellm(FILES), datetime(2026, 1, 1, tzinfo=UTC))


def test_teams_keys_and_budgets_have_their_place(imported: Imported) -> None:
    """Limits and money arrive exactly, windows as near as they go, names made valid."""
    document = tomllib.loads(toml_text(imported.document), parse_float=Decimal)
    assert document == {
        "platform": {"quota": {"concurrency": 200, "budget_usd": 1000, "budget_window": "month"}},
        "prices": {
            "llama": {
                "input_usd_per_mtok": Decimal("0.15"),
                "cached_usd_per_mtok": Decimal("0.075"),
                "output_usd_per_mtok": Decimal("0.6"),
            }
        },
        "tenants": {
            "qa-prod-bot": {
                "quota": {
                    "rpm": 600,
                    "input_tpm": 100_000,
                    "output_tpm": 100_000,
                    "budget_usd": Decimal("25.15"),
                    "budget_window": "week",
                },
                "keys": {
                    "ci": {
                        "models": ["llama"],
                        "expires_at": datetime(2099, 1, 31, 12, tzinfo=UTC),
                        "quota": {
                            "concurrency": 4,
                            "budget_usd": 7,
                            "budget_hard": False,
                            "budget_window": "366d",
                        },
                    }
                },
            },
            "qa-prod-bot-2": {
                "quota": {"budget_usd": Decimal("1e-9"), "budget_window": "366d"},
                "keys": {
                    "nightly": {
                        "models": ["llama"],
                        "quota": {"rpm": 7, "budget_usd": 1, "budget_window": "12h"},
                    }
                },
            },
            "no-team": {"keys": {"key-3": {}}},
        },
    }
    read_document(document)


def test_what_has_no_place_is_named_with_its_reason(imported: Imported) -> None:
    """Every field that says something and was not taken over is told, and nothing twice."""
    unmapped = dict(imported.unmapped)
    assert len(unmapped) == len(imported.unmapped)
    assert set(unmapped) == {
        "team 'QA Prod Bot', models gpt-*",
        "team 'QA Prod Bot', members_with_roles",
        "team 'QA Prod Bot', metadata (cost_center, tags)",
        "team 'QA Prod Bot', team_member_budget",
        "team 'gone'",
        "key 'ci', user_id",
        "key 'ci', aliases (a)",
        "key 'key-3', user_id",
        "key 'key-3', budget_id 'lost'",
        "key 'old'",
        "key 'orphan'",
        "secrets of keys",
        "spend so far",
        "model 'llama'",
        "model 'embedder'",
        "litellm_settings.success_callback",
        "litellm_settings.default_team_settings",
        "general_settings.master_key",
        "general_settings.database_url",
        "general_settings.alerting",
        "router_settings",
        "environment_variables",
    }
    assert all(unmapped.values())
    nearly = [place for place, _ in imported.approximated]
    assert "team 'QA Prod Bot', tpm_limit" in nearly
    assert "team 'qa-prod-bot', budget_duration" in nearly
    assert "key 'nightly', budget_duration" in nearly


def test_the_command_writes_what_apply_takes(server: Server, tmp_path: Path) -> None:
    """From LiteLLM's files to tenants with keys; a second time there is nothing to do."""
    out = tmp_path / "tenants.toml"
    done = sluice_here("import", "litellm", *map(str, FILES), "--out", str(out))
    assert (done.returncode, done.stdout) == (0, "")
    assert "! team 'gone': it is blocked" in done.stderr
    # Neither secrets nor their hashes are repeated.
    for canary in ("canary", "88dc28d0", "sk-"):
        assert canary not in out.read_text() + done.stderr
    applied = server.ask("apply", "-f", str(out))
    assert len(applied["keys"]) == 3
    again = server.sluice("import", "litellm", *map(str, FILES), "--apply")
    assert again.returncode == 0, again.stderr
    assert "Nothing to do." in again.stderr
    limits = server.ask("quotas", "get", "--tenant", "qa-prod-bot")["quota"]
    assert limits["budget_nano_usd"] == 25_150_000_000


def test_answers_of_its_api_are_read(tmp_path: Path) -> None:
    """Lists as /team/list and /key/list answer them, and keys that come inside of their team."""
    teams, keys = tmp_path / "teams.json", tmp_path / "keys.json"
    inside = [{"token": "a", "key_alias": "one"}]
    teams.write_text(json.dumps([{"team_id": "t", "team_alias": "acme", "keys": inside}]))
    answer = {
        "keys": [{"token": "a", "key_alias": "one", "team_id": "t"}],
        "total_count": 1,
        "current_page": 1,
        "total_pages": 1,
    }
    keys.write_text(json.dumps(answer))
    for files in ([teams], [teams, keys]):
        document = import_litellm(read_litellm(files)).document
        assert document == {"tenants": {"acme": {"keys": {"one": {}}}}}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.json", "{", "is not JSON"),
        ("a.yaml", "a: [", "is not YAML"),
        ("a.json", '{"keys": ["8f14e45f"]}', "return_full_object"),
        ("a.json", "[1]", "neither teams nor keys"),
        ("a.yaml", "just text", "neither a configuration nor a list"),
        ("a.yaml", "1: 2", "neither a configuration nor a list"),
        ("a.json", "[" * 100_000, "is not JSON"),
        ("a.yaml", "a: 2020-13-01", "is not YAML"),
        ("a.yaml", "model_list: [x]", "'model_list' must be a list of objects"),
        ("a.yaml", "model_list: [{litellm_params: 3}]", "'litellm_params' must be an object"),
        ("a.yaml", "general_settings: text", "'general_settings' must be an object"),
        ("a.json", '{"teams": [{"team_id": [1]}]}', "'team_id' must be a text or a number"),
        ("a.json", '{"teams": [{"keys": ["x"]}]}', "'keys' must be a list of objects"),
        ("a.json", '{"teams": [{"keys": [{"models": 5}]}]}', "'models' must be a list of names"),
        ("a.json", '{"keys": [{"litellm_budget_table": "x"}]}', "must be an object"),
    ],
)
def test_what_is_not_litellms_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    """A file of another kind is a mistake of one line."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(CliError, match=says):
        read_litellm([path])


def test_an_amount_that_is_none_is_told(tmp_path: Path) -> None:
    """A budget, limit or cost that cannot be is named, and is neither dropped in silence nor
    written out digit by digit.
    """
    path = tmp_path / "a.json"
    team = '{"teams": [{"team_id": "a", "rpm_limit": 1e999999999, "max_budget": %s}]}'
    for amount in ("NaN", "-1", "1e30", "1e999999999", '"much"'):
        path.write_text(team % amount)
        imported = import_litellm(read_litellm([path]))
        assert imported.document == {"tenants": {"a": {}}}
        places = [place for place, _ in imported.unmapped]
        assert "rpm_limit" in places[0]
        assert "max_budget" in places[1]
    costs = tmp_path / "costs.yaml"
    for cost in (".nan", "-1", "1e400"):
        params = f"{{input_cost_per_token: {cost}, output_cost_per_token: 0}}"
        costs.write_text(f"model_list: [{{model_name: x, litellm_params: {params}}}]")
        imported = import_litellm(read_litellm([costs]))
        assert imported.document == {}
        assert imported.unmapped[0][0] == "model 'x', costs"


def test_a_key_whose_models_cannot_be_named_is_left_out(tmp_path: Path) -> None:
    """It is no key for all models, whether it or its team is held to them; `*` is all."""
    team = {"team_id": "1", "team_alias": "acme"}
    held = {"team_id": "2", "team_alias": "held", "models": ["openai/*"]}
    keys = [
        {"token": "a", "key_alias": "wild", "team_id": "1", "models": ["gpt-*", "anthropic/*"]},
        {"token": "b", "key_alias": "one", "team_id": "1", "models": ["gpt-*", "llama"]},
        {"token": "c", "key_alias": "all", "team_id": "1", "models": ["*"]},
        {"token": "d", "key_alias": "of-team", "team_id": "2"},
        {"token": "e", "key_alias": "own", "team_id": "2", "models": ["llama"]},
    ]
    path = tmp_path / "export.json"
    path.write_text(json.dumps({"teams": [team, held], "keys": keys}))
    imported = import_litellm(read_litellm([path]), datetime(2026, 1, 1, tzinfo=UTC))
    tenants = imported.document["tenants"]
    assert tenants["acme"]["keys"] == {"one": {"models": ["llama"]}, "all": {}}
    assert tenants["held"]["keys"] == {"own": {"models": ["llama"]}}
    left_out = [place for place, reason in imported.unmapped if "left out" in reason]
    assert left_out == ["key 'wild'", "key 'of-team'"]


def test_names_that_speak_to_a_terminal_are_spelled_out(tmp_path: Path) -> None:
    """Each is told on a line of its own; a model's that UTF-8 does not know is left out."""
    team = {"team_id": "1", "team_alias": "ac\n! me\x1b[2J"}
    key = {"token": "a", "key_alias": "k", "team_id": "1", "models": ["llama", "x\ud800"]}
    path = tmp_path / "export.json"
    costs = {"input_cost_per_token": 1, "output_cost_per_token": 1}
    model = {"model_name": "x\ud800", "litellm_params": costs}
    path.write_text(json.dumps({"teams": [team], "keys": [key], "model_list": [model]}))
    imported = import_litellm(read_litellm([path]), datetime(2026, 1, 1, tzinfo=UTC))
    assert imported.approximated[0][0] == r"team 'ac\n! me\x1b[2J'"
    assert imported.unmapped[0] == (r"key 'k', models x\ud800", "models are named one by one")
    assert '"llama"' in toml_text(imported.document).encode().decode()


def test_a_page_that_is_there_twice_makes_nothing_twice(tmp_path: Path) -> None:
    """A team or key whose id or token was there before is told, and is not made again."""
    pages = []
    for number in range(2):
        pages.append(tmp_path / f"{number}.json")
        rows = {
            "teams": [{"team_id": "1", "team_alias": "acme"}, {"team_alias": f"other-{number}"}],
            "keys": [{"token": "t", "key_alias": "one", "team_id": "1"}],
        }
        pages[-1].write_text(json.dumps(rows), "utf-8-sig")
    imported = import_litellm(read_litellm(pages))
    assert imported.document == {
        "tenants": {"acme": {"keys": {"one": {}}}, "other-0": {}, "other-1": {}}
    }
    told = [place for place, reason in imported.unmapped if "twice" in reason]
    assert told == ["team 'acme'", "key 'one'"]


def test_yaml_runs_nothing(tmp_path: Path) -> None:
    """A tag that would make an object is refused."""
    path = tmp_path / "a.yaml"
    path.write_text("x: !!python/object/apply:os.system ['true']")
    with pytest.raises(CliError, match="is not YAML"):
        read_litellm([path])


def test_wrong_usage_needs_no_file() -> None:
    """What excludes each other is told before anything is read."""
    for flags in (["--out", "x", "--apply"], ["--dry-run"]):
        assert sluice_here("import", "litellm", "none.yaml", *flags).returncode == 2

"""The chart as Helm and a cluster's API read it: linted, checked by schemas, and misused."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

import helm_python
import kubernetes_validate
import pytest
import yaml

from gateway.environment import OTHERS
from gateway.model_settings import ModelTable
from gateway.settings import Settings
from tests.helm.rendered import CHART, CI, SHAPES, render, rendered, values_of, with_changes

# The oldest that Chart.yaml names, and the newest that is known here.
CLUSTERS: Final = ("1.29", kubernetes_validate.latest_version())
# Of the Prometheus operator: no schema of Kubernetes has them.
FOREIGN: Final = {"ServiceMonitor", "PrometheusRule"}
VALUES: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())
_INFO: Final = 1


def test_there_is_a_file_for_each_way_to_run_it() -> None:
    """As it comes, with GPUs, with stores outside, with several models, with everything on."""
    asked = {"default", "gpu", "external-stores", "several-models", "everything"}
    assert set(SHAPES) >= asked
    assert all(path.read_text().startswith("# ") for path in CI)


@pytest.mark.parametrize("shape", SHAPES)
def test_helm_finds_nothing_to_say(shape: str) -> None:
    """Linted strictly with the values of the file: no error, no warning."""
    report = helm_python.lint(CHART, values_of(shape), strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > _INFO] == []


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_object_is_one_that_kubernetes_knows(shape: str, cluster: str) -> None:
    """Each object has a schema of that version and keeps it, unknown fields refused."""
    seen = set()
    for one in rendered(shape).objects:
        seen.add(one["kind"])
        if one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, cluster, strict=True)
    assert {"NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"} <= seen
    if shape == "everything":
        assert seen > FOREIGN | {"HorizontalPodAutoscaler", "Ingress", "Job", "StatefulSet"}


def test_strictness_is_what_it_says() -> None:
    """The validator that finds nothing above does find a misspelt field."""
    service = dict(rendered("default").of("Service")["rel"])
    service["spec"] = service["spec"] | {"selectr": {}}
    with pytest.raises(kubernetes_validate.ValidationError, match="selectr"):
        kubernetes_validate.validate(service, CLUSTERS[-1], strict=True)


def test_the_chart_is_of_this_release() -> None:
    """The image that it takes unless told is the one of this version."""
    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]


def keys_of(values: Any, schema: dict[str, Any], path: str = "") -> set[str]:
    """Name the keys of values, as deep as their schema has properties."""
    found = set()
    for key, value in values.items():
        here = f"{path}{key}"
        found.add(here)
        below = schema["properties"][key]
        if "properties" in below and isinstance(value, dict):
            found |= keys_of(value, below, f"{here}.")
    return found


def properties_of(schema: dict[str, Any], path: str = "") -> set[str]:
    """Name what a schema has, as deep."""
    found = set()
    for key, below in schema.get("properties", {}).items():
        found.add(f"{path}{key}")
        found |= properties_of(below, f"{path}{key}.")
    return found


def test_schema_and_values_have_the_same_keys() -> None:
    """Nothing can be set that values.yaml does not show, and nothing there is refused."""
    assert keys_of(VALUES, SCHEMA) == properties_of(SCHEMA) - {"global"}


def test_a_table_of_models_has_the_keys_of_the_product() -> None:
    """The schema's keys of a model are those of `[[models]]`."""
    items = SCHEMA["properties"]["models"]["items"]
    assert set(items["properties"]) == set(ModelTable.model_fields)


def test_what_the_chart_sets_cannot_be_set_beside_it() -> None:
    """Each variable that any rendering sets by itself is refused in `settings`, or is one of
    `settings`; what is refused is a setting."""
    refused = set(SCHEMA["properties"]["settings"]["propertyNames"]["not"]["enum"])
    assert refused <= set(Settings.model_fields)
    for shape in SHAPES:
        values = values_of(shape)
        own = {name.upper() for name in (VALUES["settings"] | values["settings"])}
        own |= {one["name"].removeprefix("SLUICE_") for one in values.get("extraEnv", ())}
        for _, pod in rendered(shape).pods():
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
                names = [one["name"] for one in container.get("env", ())]
                assert len(names) == len(set(names)), container["name"]
                set_ = {
                    name.removeprefix("SLUICE_") for name in names if name.startswith("SLUICE_")
                }
                assert {name.lower() for name in set_ - own} <= refused | {"engine"}
                assert {name.lower() for name in set_} <= set(Settings.model_fields) | set(OTHERS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gateway__replica": 2}, "replica"),
        ({"settings__port": 1}, "invalid propertyName 'port'"),
        ({"settings__Log_Format": "json"}, "invalid propertyName 'Log_Format'"),
        ({"image__digest": "sha256:0"}, "digest"),
        ({"gateway__dataSize": "10G"}, "dataSize"),
        ({"models": [{"name": "a"}]}, "directory"),
        ({"models": [{"directory": "/etc"}]}, "directory"),
        ({"redis__url": "http://a"}, "url"),
        ({"networkPolicy__scrapers": []}, "scrapers"),
        ({"gateway__replicas": 2}, "shares tenants' files"),
        ({"worker__enabled": True}, "shares tenants' files"),
        ({"files__s3": "s3://a/b", "files__existingClaim": "c"}, "files are at one place"),
        ({"models": [{"directory": "a"}]}, "has to come from somewhere"),
        ({"modelFiles__existingClaim": "a", "modelFiles__s3__path": "b"}, "from one place"),
        ({"postgresql__enabled": False}, "there must be database.url"),
        ({"database__url": "postgresql://a/b"}, "there is one database"),
        ({"valkey__enabled": False}, "there must be redis.url"),
        ({"redis__url": "redis://a"}, "there is one Redis"),
        (
            {"networkPolicy__enabled": False, "monitoring__serviceMonitor__enabled": True},
            "opens everything",
        ),
        ({"autoscaling__enabled": True, "files__existingClaim": "c"}, "enable both"),
        ({"ingress__enabled": True}, "ingress.host"),
    ],
    ids=lambda one: "-".join(one) if isinstance(one, dict) else "",
)
def test_values_that_cannot_be_meant_are_refused(changes: dict[str, Any], said: str) -> None:
    """A misspelt key, a value out of its range, and what contradicts itself: each says what."""
    with pytest.raises(helm_python.HelmError, match=re.escape(said)):
        render(with_changes("default", **changes))


def test_numbers_and_lists_reach_variables_as_they_were_written() -> None:
    """No exponent, no quotes, lists by commas; a model's directory is where it is mounted."""
    written = {
        "kv_cache_bytes": 8_000_000_000_000,
        "trace_share": 0.25,
        "log_requests": False,
        "quota_thresholds": [50, 90],
        "trusted_proxies": ["10.0.0.0/8", "192.168.0.0/16"],
    }
    models = [
        {"directory": "a/b", "max_model_len": 1_048_576, "kv_share": 0.5},
        {"directory": "demo", "aliases": ["x y"]},
    ]
    chart = render(
        with_changes("default", settings=written, models=models, modelFiles__existingClaim="models")
    )
    _, pod = chart.component("gateway")
    found = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert {name: found[f"SLUICE_{name.upper()}"] for name in written} == {
        "kv_cache_bytes": "8000000000000",
        "trace_share": "0.25",
        "log_requests": "false",
        "quota_thresholds": "50,90",
        "trusted_proxies": "10.0.0.0/8,192.168.0.0/16",
    }
    tables = json.loads(str(found["SLUICE_MODELS"]))
    assert tables == [models[0] | {"directory": "/models/a/b"}, models[1]]


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: Debian's prometheus"
)
def test_promtool_reads_the_rules_and_the_autoscalers_are_right(tmp_path: Path) -> None:
    """The rendered rules are Prometheus's own; a pod without traffic records 0, one that waits and
    misses its promises what it waited and missed."""
    [rule] = rendered("everything").of("PrometheusRule").values()
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    assert [group["name"] for group in rule["spec"]["groups"]] == ["sluice", "sluice-autoscaling"]
    pods = {"busy": ("0+30x20", "0+10x20", "0+5x20", "0+15x20"), "idle": ("0x20",) * 4}
    series = []
    for pod, (waited, began, missed, kept) in pods.items():
        labels = f'namespace="prod", pod="{pod}"'
        series += [
            (f'sluice_queue_time_seconds_sum{{class="default", {labels}}}', waited),
            (f'sluice_queue_time_seconds_count{{class="default", {labels}}}', began),
            (f'sluice_queue_time_seconds_sum{{class="batch", {labels}}}', "0+900x20"),
            (f'sluice_queue_time_seconds_count{{class="batch", {labels}}}', "0+1x20"),
            (f'sluice_slo_attained_total{{slo="ttft", met="false", {labels}}}', missed),
            (f'sluice_slo_attained_total{{slo="ttft", met="true", {labels}}}', kept),
            (f"sluice_overload_level{{{labels}}}", "0x20"),
        ]
    expected = {
        "sluice_autoscaling_queue_wait_seconds": {"busy": 3, "idle": 0},
        "sluice_autoscaling_slo_missed_ratio": {"busy": 0.25, "idle": 0},
    }
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "promql_expr_test": [
                    {
                        "expr": name,
                        "eval_time": "15m",
                        "exp_samples": [
                            {"labels": f'{name}{{namespace="prod", pod="{pod}"}}', "value": value}
                            for pod, value in values.items()
                        ],
                    }
                    for name, values in expected.items()
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "test.yaml"]):
        done = subprocess.run(
            ["promtool", *command], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    metrics = rendered("everything").of("HorizontalPodAutoscaler")["llm"]["spec"]["metrics"]
    assert {one["pods"]["metric"]["name"] for one in metrics} == set(expected)

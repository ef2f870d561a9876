"""What every rendering of the chart keeps: what pods may do, whom they meet, how they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.helm.rendered import CHART, SHAPES, Object, Rendered, render, rendered, with_changes

STORES: Final = ("postgresql", "valkey")


def containers(pod: Object) -> Iterator[Object]:
    """Yield all containers of a pod's template."""
    yield from (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"])


def selects(selector: dict[str, str], pod: Object) -> bool:
    """Tell whether labels select a pod."""
    return selector.items() <= pod["metadata"]["labels"].items()


def sluices(chart: Rendered) -> dict[str, Object]:
    """Return the pods that run servers or workers, by component."""
    return {
        pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod
        for _, pod in chart.pods()
        if pod["metadata"]["labels"]["app.kubernetes.io/component"] in ("gateway", "worker")
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_no_pod_has_more_than_it_needs(shape: str) -> None:
    """No root, no way to it, no token of the cluster, a root directory that nobody writes, no
    capability, an end to its memory and to what it writes; of the migrations too."""
    for name, pod in rendered(shape).pods():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, name
        assert context["runAsUser"] > 0, name
        assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"], name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec), name
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, (name, container["name"])
            assert container["resources"]["limits"]["memory"], (name, container["name"])
            assert not any("hostPort" in port for port in container.get("ports", ()))
        for volume in spec["volumes"]:
            assert set(volume) & {"emptyDir", "secret", "configMap", "persistentVolumeClaim"}
            # What one pod writes does not fill the node of others.
            assert "emptyDir" not in volume or volume["emptyDir"]["sizeLimit"], volume
    for account in rendered(shape).of("ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("shape", SHAPES)
def test_secrets_reach_those_alone_who_need_them(shape: str) -> None:
    """No value of a Secret stands in a pod; the owner's login is of what migrates; nothing that
    serves mounts the Secret of another."""
    chart = rendered(shape)
    values = {value for content in chart.secrets().values() for value in content.values()}
    texts = {value.decode() for value in values if value.isascii() and len(value) > 6}
    for name, pod in chart.pods():
        text = yaml.safe_dump(pod)
        assert not [secret for secret in texts if secret in text], name
        for container in containers(pod):
            keys = {
                one["valueFrom"]["secretKeyRef"]["key"]
                for one in container.get("env", ())
                if "valueFrom" in one
            }
            serves = container["name"] == "sluice"
            assert not (serves and keys & {"database-owner-url", "postgresql-password"})
            mounted = {one["name"] for one in container["volumeMounts"]}
            assert "root-secret" not in mounted or container["name"] == "root-secret"
    for config in chart.of("ConfigMap").values():
        assert not [secret for secret in texts if secret in yaml.safe_dump(config)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_network_policy_stands_before_every_pod(shape: str) -> None:
    """In and out; to the admin port scrapers alone come, to stores Sluice's own pods, and stores
    call nobody."""
    chart = rendered(shape)
    policies = chart.of("NetworkPolicy").values()
    for name, pod in chart.pods():
        [policy] = [
            one for one in policies if selects(one["spec"]["podSelector"]["matchLabels"], pod)
        ]
        spec = policy["spec"]
        assert set(spec["policyTypes"]) == {"Ingress", "Egress"}, name
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for rule in spec["ingress"]:
            ports = {port["port"] for port in rule["ports"]}
            if "admin" in ports:
                assert ports == {"admin"}
                assert rule["from"], name
            if component in STORES:
                assert [each["podSelector"]["matchLabels"] for each in rule["from"]] == [
                    {
                        "app.kubernetes.io/name": "sluice",
                        "app.kubernetes.io/instance": chart_release(pod),
                    }
                ]
        # An open rule without a port would let whoever takes a pod call anybody.
        assert all(rule.get("ports") for rule in spec["egress"]), name
        if component in STORES:
            assert spec["egress"] == [], name
        if component == "migrations":
            assert spec["ingress"] == [], name


def chart_release(pod: Object) -> str:
    """Return the release that a pod is of."""
    return str(pod["metadata"]["labels"]["app.kubernetes.io/instance"])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_admin_port_is_a_pods_own_unless_something_must_reach_it(shape: str) -> None:
    """Without scrapers it listens at the loopback, while the API is for all; no Service or Ingress
    for clients has it."""
    chart = rendered(shape)
    monitors = bool(chart.of("ServiceMonitor"))
    for component, pod in sluices(chart).items():
        env = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        is_reached = monitors or component == "worker"
        assert env.get("SLUICE_HOST") == (None if component == "worker" else "0.0.0.0")
        assert (env.get("SLUICE_ADMIN_HOST") == "0.0.0.0") is is_reached
        assert (env.get("SLUICE_ADMIN_ALLOW_PLAIN") == "true") is is_reached
    for name, service in chart.of("Service").items():
        ports = {port["targetPort"] for port in service["spec"]["ports"]}
        assert "admin" not in ports or (name.endswith("-metrics") and ports == {"admin"})
        assert not name.endswith("-metrics") or service["spec"]["clusterIP"] == "None"
    for ingress in chart.of("Ingress").values():
        [rule] = ingress["spec"]["rules"]
        [path] = rule["http"]["paths"]
        assert path["backend"]["service"]["port"] == {"name": "http"}


@pytest.mark.parametrize("shape", SHAPES)
def test_selectors_find_the_pods_that_are_meant(shape: str) -> None:
    """Services, budgets and controllers each find pods, and those of one component alone but for
    the one of metrics; named ports are there."""
    chart = rendered(shape)
    pods = [pod for name, pod in chart.pods() if not name.startswith("Job/")]

    def found_by(selector: dict[str, str]) -> list[Object]:
        return [pod for pod in pods if selects(selector, pod)]

    for name, service in chart.of("Service").items():
        found = found_by(service["spec"]["selector"])
        assert len(found) == (len(sluices(chart)) if name.endswith("-metrics") else 1), name
        for port in service["spec"]["ports"]:
            for pod in found:
                assert port["targetPort"] in {
                    one["name"]
                    for container in pod["spec"]["containers"]
                    for one in container["ports"]
                }, name
    budgets = [
        one["spec"]["selector"]["matchLabels"] for one in chart.of("PodDisruptionBudget").values()
    ]
    kept = [pod for labels in budgets for pod in found_by(labels)]
    # Each has one: a pod of two budgets could not be evicted at all.
    assert len(kept) == len(sluices(chart))
    assert all(pod in kept for pod in sluices(chart).values())
    for kind in ("Deployment", "StatefulSet"):
        for name, one in chart.of(kind).items():
            labels = one["spec"]["selector"]["matchLabels"]
            assert found_by(labels) == [one["spec"]["template"]], name
            # They cannot be changed once they are there: no version, no chart.
            assert not any("version" in key or "chart" in key for key in labels)
    for monitor in chart.of("ServiceMonitor").values():
        labels = monitor["spec"]["selector"]["matchLabels"]
        [scraped] = [
            one
            for one in chart.of("Service").values()
            if labels.items() <= one["metadata"]["labels"].items()
        ]
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in scraped["spec"]["ports"]}
        # As the alerts have it.
        assert scraped["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "sluice"
    for scaler in chart.of("HorizontalPodAutoscaler").values():
        target = scaler["spec"]["scaleTargetRef"]
        scaled = chart.of(target["kind"])[target["name"]]
        assert "replicas" not in scaled["spec"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pod_is_given_the_time_that_its_drain_takes(shape: str) -> None:
    """The grace period is longer than the drain, readiness is asked more often than the drain
    waits, and a start has the time that was set for it."""
    for pod in sluices(rendered(shape)).values():
        [container] = pod["spec"]["containers"]
        env = {one["name"]: one.get("value") for one in container["env"]}
        grace_s = float(env["SLUICE_SHUTDOWN_GRACE_S"])
        assert grace_s + 10 <= pod["spec"]["terminationGracePeriodSeconds"] < grace_s + 12
        ready = container["readinessProbe"]
        fails_s = ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
        assert fails_s < float(env["SLUICE_DRAIN_ACCEPT_S"])
        start = container["startupProbe"]
        wanted_s = 300 if shape == "everything" else 900
        assert start["periodSeconds"] * start["failureThreshold"] == wanted_s


def test_a_gpu_is_asked_for_once_a_pod() -> None:
    """One process and one GPU, beside the limits that were set, by the image that has CUDA."""
    chart = render(with_changes("gpu", image__digest="", worker__enabled=True))
    for pod in sluices(chart).values():
        [container] = pod["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert container["resources"]["limits"]["memory"]
        assert container["image"].endswith("-cuda")
        assert pod["spec"]["runtimeClassName"] == "nvidia"
        # What it needs to be compiled for is the GPU, which is done as kernels are first used.
        assert "operators" not in {one["name"] for one in pod["spec"]["initContainers"]}
    plain = render(with_changes("default"))
    assert all("nvidia" not in yaml.safe_dump(pod) for _, pod in plain.pods())


def test_the_owner_of_a_database_outside_is_gone_after_the_migration() -> None:
    """Its Secret is a hook's, made before the job and deleted with it; no other object has it."""
    chart = rendered("external-stores")
    owned: list[dict[str, Any]] = [
        one for one in chart.objects if "owner-password" in yaml.safe_dump(one)
    ]
    [secret] = owned
    [job] = chart.of("Job").values()
    hooks = [one["metadata"]["annotations"] for one in (secret, job)]
    for hook in hooks:
        assert hook["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert "hook-succeeded" in hook["helm.sh/hook-delete-policy"]
    assert int(hooks[0]["helm.sh/hook-weight"]) < int(hooks[1]["helm.sh/hook-weight"])


def test_the_boards_and_alerts_are_those_of_the_repository() -> None:
    """Each file of dashboards/ is in a ConfigMap as it is, and each alert in the rules."""
    chart = rendered("everything")
    boards = {
        name: text
        for config in chart.of("ConfigMap").values()
        for name, text in config["data"].items()
    }
    assert boards == {
        f"sluice-{path.name}": path.read_text() for path in (CHART / "dashboards").glob("*.json")
    }
    [rules] = chart.of("PrometheusRule").values()
    groups = yaml.safe_load((CHART / "rules/sluice.yaml").read_text())["groups"]
    assert rules["spec"]["groups"][: len(groups)] == groups

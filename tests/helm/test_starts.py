"""Each `ci/` file of the chart: what it renders starts, passes its probes and answers a chat."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError

from engine.demo import MODEL_DIR
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.store.embedded import EmbeddedServers
from gateway.store.placement import installed_programs
from gateway.store.postgres_server import LOGIN, MAINTENANCE, OWNER, SUPERUSER
from tests.faults.replica import free_port
from tests.helm.kubelet import Pod
from tests.helm.rendered import SHAPES, Rendered, rendered
from tests.passable import passable_directory
from tests.trace_receiver import Receiver, receiving

HERE: Final = IPv4Address("127.0.0.1")
KEYS: Final = [new_token(KEY_PREFIX).text for _ in range(2)]
ADMIN: Final = new_token(ADMIN_PREFIX).text
# What comes of an image or hardware that is not here, with what stands for it.
INSTEAD: Final = {"SLUICE_ENGINE": {"gpu": "simulated"}}


@dataclass
class Stores:
    """Hold what the rendered addresses lead to; `database` is the shape's own."""

    servers: EmbeddedServers
    valkey: str
    collector: Receiver
    database: str = "sluice"

    def here(self, url: str) -> str:
        """Return a URL of this machine: of a store, for the user that is named, or a collector."""
        user, host = urlsplit(url).username, urlsplit(url).hostname
        if url.startswith("redis"):
            return self.valkey
        if url.startswith("http"):
            return self.collector.url if host == "collector.observability" else url
        assert user in (LOGIN, OWNER), user
        return self.servers.database_url(user, self.database)

    async def superuser(self, *statements: str) -> None:
        """Run statements that a database's maker runs."""
        connection = await asyncpg.connect(self.servers.database_url(SUPERUSER, MAINTENANCE))
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    """Run a PostgreSQL whose roles the chart's script made, and a Valkey by the chart's file."""
    chart = rendered("default")
    with (
        passable_directory() as parent,
        EmbeddedServers(parent / "data", valkey=False) as servers,
        valkey_by(chart, parent) as url,
        receiving() as collector,
    ):
        made = Stores(servers, url, collector)
        # The embedded server has them already; a new volume has none.
        asyncio.run(
            made.superuser(
                "ALTER SYSTEM SET fsync = off",
                "SELECT pg_reload_conf()",
                "DROP DATABASE sluice",
                f"DROP ROLE {LOGIN}",
                f"DROP ROLE {OWNER}",
            )
        )
        make_roles(chart, servers, parent)
        yield made


def make_roles(chart: Rendered, servers: EmbeddedServers, parent: Path) -> None:
    """Run the script that the chart gives PostgreSQL's image, by its mode and its variables."""
    pod = chart.of("StatefulSet")["rel-postgresql"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    secrets = chart.secrets()
    environment = {}
    for one in container["env"]:
        wanted = one.get("valueFrom", {}).get("secretKeyRef")
        environment[one["name"]] = (
            one["value"] if wanted is None else secrets[wanted["name"]][wanted["key"]].decode()
        )
    [volume] = (one for one in pod["volumes"] if "configMap" in one)
    script = parent / "make-roles.sh"
    script.write_text(chart.of("ConfigMap")["rel-postgresql"]["data"][script.name])
    script.chmod(volume["configMap"]["defaultMode"])
    here = {
        "PATH": f"{installed_programs().postgres_bin}:/usr/bin:/bin",
        "PGHOST": str(servers.sockets),
        "POSTGRES_USER": SUPERUSER,
    }
    subprocess.run([script], env=environment | here, check=True, timeout=60)


@contextmanager
def valkey_by(chart: Rendered, parent: Path) -> Iterator[str]:
    """Run Valkey by the file that the chart renders; yields the URL that gateways are given."""
    secrets = chart.secrets()
    given = secrets["rel-stores"]["redis-url"].decode()
    [container] = chart.of("StatefulSet")["rel-valkey"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["valkey-server", "/etc/valkey/valkey.conf"]
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    port = free_port()
    text = secrets["rel-valkey"]["valkey.conf"].decode()
    assert "bind * -::*\n" in text
    assert "dir /data\n" in text
    (parent / "valkey").mkdir()
    conf = parent / "valkey.conf"
    conf.write_text(
        text.replace("bind * -::*", f"bind 127.0.0.1\nport {port}").replace(
            "dir /data", f"dir {parent / 'valkey'}"
        )
    )
    process = subprocess.Popen(
        [str(installed_programs().valkey), str(conf)], stdout=subprocess.DEVNULL
    )
    url = given.replace("rel-valkey:6379", f"127.0.0.1:{port}")
    try:
        until_s = time.monotonic() + 30
        while True:
            try:
                with Redis.from_url(url) as redis:
                    redis.ping()
                    break
            except ConnectionError:
                assert time.monotonic() < until_s
                time.sleep(0.02)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.mark.thorough
def test_the_valkey_of_the_chart_forgets_nothing_and_lets_in_whom_it_knows(stores: Stores) -> None:
    """By the rendered file: no command without the password, refused writes and no evictions."""
    with Redis.from_url(stores.valkey) as redis:
        found = redis.config_get("maxmemory*")
        assert found["maxmemory-policy"] == "noeviction"
        assert int(found["maxmemory"]) == 512 << 20
        assert redis.config_get("append*")["appendonly"] == "yes"
    port = urlsplit(stores.valkey).port
    with (
        Redis.from_url(f"redis://127.0.0.1:{port}") as stranger,
        pytest.raises(AuthenticationError),
    ):
        stranger.ping()


@pytest.fixture
def claims(tmp_path: Path) -> dict[str, Path]:
    """Make the volumes that are there before the chart: models, files, the StatefulSet's own."""
    made = {}
    for name in ("models", "sluice-files", "llm-files", "data"):
        made[name] = tmp_path / "claims" / name
        made[name].mkdir(parents=True)
    shutil.copytree(MODEL_DIR, made["models"] / "released" / "Qwen3-8B")
    return made


def given_secrets() -> dict[str, dict[str, bytes]]:
    """Make the Secrets that the `ci/` files say are there."""
    server = "postgresql://sluice_server@db.example/sluice"
    certificate, key = self_signed()
    return {
        "sluice-root": {"root": os.urandom(32)},
        "llm-root": {"root": os.urandom(32)},
        "llm-database": {
            "database-url": server.encode(),
            "database-owner-url": server.replace(LOGIN, OWNER).encode(),
        },
        "llm-redis": {"redis-url": b"redis://redis.example:6379/0"},
        "llm-tls": {"tls.crt": certificate, "tls.key": key},
        "first-keys": {"keys": ",".join(KEYS).encode(), "admin-token": ADMIN.encode()},
        "webhook": {"secret": b"whsec_" + b"QUJD" * 8},
    }


def self_signed() -> tuple[bytes, bytes]:
    """Make a certificate and its key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "llm")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(HERE)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private


@dataclass
class Simulated(Pod):
    """A pod that has no GPU here."""

    def environment(self, name: str) -> dict[str, str]:
        found = super().environment(name)
        for variable, instead in INSTEAD.items():
            if variable in found:
                found[variable] = instead.get(found[variable], found[variable])
        return found


@dataclass
class Cluster:
    """Hold what pods of a shape are made of."""

    shape: str
    stores: Stores
    claims: dict[str, Path]
    directory: Path
    secrets: dict[str, dict[str, bytes]]

    def pod(self, component: str) -> Pod:
        """Make the pod of a component, and run what comes before its container."""
        _, template = rendered(self.shape).component(component)
        pod = Simulated(
            template, self.secrets, self.directory / component, self.claims, self.stores.here
        )
        names = [one["name"] for one in template["spec"].get("initContainers", ())]
        for name in names:
            if name == "models":
                self._copy_models(pod)
            # Compiled for a processor, which takes a minute; tests/engine/native has it.
            elif name != "operators":
                pod.run(name)
        return pod

    def _copy_models(self, pod: Pod) -> None:
        """Do what the init container does: everything below the prefix, into its volume."""
        [*_, source, target] = pod._command("models")
        assert source == "store:models/released"
        for directory in ("Qwen3-0.6B", "Qwen3-Embedding-0.6B"):
            shutil.copytree(MODEL_DIR, Path(target) / directory)


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, stores: Stores, claims: dict[str, Path], tmp_path: Path
) -> Cluster:
    """Give a shape an empty database of its own, migrated by its job where it has one."""
    shape = request.param
    with Redis.from_url(stores.valkey) as redis:
        redis.flushall()
    # The first is the one that the chart's script has made.
    stores.database = "sluice" if shape == "default" else f"of_{shape.replace('-', '_')}"
    if shape != "default":
        asyncio.run(stores.superuser(f"CREATE DATABASE {stores.database} OWNER {OWNER}"))
    chart = rendered(shape)
    made = Cluster(shape, stores, claims, tmp_path, given_secrets() | chart.secrets())
    if chart.of("Job"):
        migrations = made.pod("migrations")
        assert migrations.run("schema").strip().isdigit()
    return made


def chat(pod: Pod, key: str, model: str, authority: bytes | None) -> str:
    """Ask for a short answer, over HTTPS where there is an authority to trust; returns by whom."""
    trusted = authority and ssl.create_default_context(cadata=authority.decode())
    answer = httpx.post(
        f"{pod.url('http')}/v1/chat/completions",
        headers={"authorization": f"Bearer {key}"},
        json={
            "model": model,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "What is Sluice?"}],
        },
        verify=trusted or True,
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert document["usage"]["completion_tokens"] > 0
    return str(document["model"])


# By shape: what a client asks for, and the model that answers.
ASKED: Final[dict[str, tuple[str, str]]] = {
    "default": ("sluice-demo", "sluice-demo"),
    "gpu": ("qwen3-8b", "qwen3-8b"),
    "external-stores": ("sluice-demo", "sluice-demo"),
    "several-models": ("gpt-4o-mini", "qwen3-0.6b"),
    "everything": ("sluice-demo", "sluice-demo"),
}


def test_every_shape_is_started() -> None:
    """A file of `ci/` that nobody starts would say nothing."""
    assert set(ASKED) == set(SHAPES)


@pytest.mark.thorough
@pytest.mark.parametrize("cluster", SHAPES, indirect=True)
def test_a_rendered_gateway_starts_and_answers(cluster: Cluster) -> None:
    """With its rendered containers, variables, arguments and probes alone; its output has no
    secret, and readiness is withdrawn at a signal before it ends well."""
    pod = cluster.pod("gateway")
    asked, answers = ASKED[cluster.shape]
    authority = cluster.secrets["llm-tls"]["tls.crt"] if cluster.shape == "everything" else None
    said = ""
    with pod.running() as process:
        assert pod.passes("livenessProbe")
        assert pod.passes("readinessProbe")
        assert "SLUICE_DATABASE_OWNER_URL" not in pod.environment("sluice")
        key = key_of(pod)
        assert chat(pod, key, asked, authority) == answers
        if cluster.shape == "everything":
            scraped = httpx.get(f"{pod.url('admin')}/metrics", timeout=30)
            assert "sluice_requests_total" in scraped.text
            said = worked(cluster.pod("worker"))
        assert pod.stop(process) == 0, pod.log
    if cluster.shape == "everything":
        assert "POST /v1/chat/completions" in {span.name for span in cluster.stores.collector.spans}
    said += pod.log
    assert key not in said
    assert "sluice_admin_" not in said
    assert "Shown this once" not in said


def key_of(pod: Pod) -> str:
    """Return a key that the first start was given, or make one as the chart's notes say."""
    environment = pod.environment("sluice")
    if "SLUICE_INIT_KEYS" in environment:
        return KEYS[0]
    if "acme" not in environment["SLUICE_INIT_TENANTS"]:
        # No tenant was made that nobody asked for, so that the name is free.
        pod.execute("sluice", "tenants", "create", "acme")
    return pod.execute("sluice", "keys", "create", "--tenant", "acme")


def worked(worker: Pod) -> str:
    """Run a worker through its probes, and return what it printed."""
    with worker.running() as process:
        assert worker.passes("livenessProbe")
        assert worker.passes("readinessProbe")
        assert worker.stop(process) == 0, worker.log
    return worker.log

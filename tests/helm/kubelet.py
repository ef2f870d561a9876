"""What a kubelet does of a rendered pod, on this machine: volumes, variables, containers, probes.

Nothing is taken from anywhere but the pod. Paths, ports and stores' addresses are mapped to what
there is here, each by where it is mounted or what it is called; a path that is mounted nowhere is
an error, as the root of a container is read-only.
"""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from tests.faults.replica import free_port
from tests.helm.rendered import Object

BIN: Final = Path(sys.executable).parent
# The image's entrypoint; helm/Containerfile says so.
ENTRYPOINT: Final = (str(BIN / "sluice"),)
_ANY_ADDRESS: Final = "0.0.0.0"

Secrets = Mapping[str, Mapping[str, bytes]]


@dataclass
class Pod:
    """Hold a pod's template and what its names mean here.

    `claims` are the directories of volumes that are there already; `address` turns the URL of
    something outside the pod into the one of this machine.
    """

    template: Object
    secrets: Secrets
    directory: Path
    claims: Mapping[str, Path]
    address: Callable[[str], str]
    ports: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir()
        self._volumes = {
            volume["name"]: self._made(volume) for volume in self.template["spec"]["volumes"]
        }
        for name in self.claims.keys() - self._volumes.keys():
            self._volumes[name] = self.claims[name]

    def container(self, name: str) -> Object:
        """Return a container, or an init container."""
        spec = self.template["spec"]
        [found] = [
            one
            for one in (*spec.get("initContainers", ()), *spec["containers"])
            if one["name"] == name
        ]
        return dict(found)

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a container, and of its image the search path."""
        container = self.container(name)
        found = {"PATH": f"{BIN}:/usr/bin:/bin"}
        for variable in container.get("env", ()):
            value = self._value_of(variable)
            if value is not None:
                found[variable["name"]] = self._here(value, container)
        return found

    def run(self, name: str) -> str:
        """Run a container that ends, and return what it printed. Raises: `AssertionError`."""
        done = subprocess.run(
            self._command(name),
            env=self.environment(name),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"{name}: {done.stderr}"
        return done.stdout

    def execute(self, *command: str) -> str:
        """Run a command of the image beside the server, as `kubectl exec` does."""
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            env=self.environment("sluice"),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Run the pod's container until left; it has passed its startup probe."""
        log = (self.directory / "log").open("w+")
        process = subprocess.Popen(
            self._command("sluice"),
            env=self.environment("sluice"),
            cwd=self.directory,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            probe = self.container("sluice")["startupProbe"]
            until_s = time.monotonic() + min(
                120, probe["periodSeconds"] * probe["failureThreshold"]
            )
            while not self.passes("startupProbe"):
                assert process.poll() is None, self.log
                assert time.monotonic() < until_s, self.log
                time.sleep(0.05)
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            log.close()

    @property
    def log(self) -> str:
        """Return what the container printed so far, on both streams."""
        return (self.directory / "log").read_text()

    def url(self, port: str) -> str:
        """Return where a named port of the container is."""
        probe = self.container("sluice")["startupProbe"]["httpGet"]
        scheme = str(probe.get("scheme", "http")).lower() if port == probe["port"] else "http"
        [number] = [
            one["containerPort"] for one in self.container("sluice")["ports"] if one["name"] == port
        ]
        return f"{scheme}://127.0.0.1:{self._port(number)}"

    def passes(self, probe: str) -> bool:
        """Ask as a probe does. A certificate is not looked at, as kubelets do."""
        asked = self.container("sluice")[probe]
        get = asked["httpGet"]
        insecure = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        insecure.check_hostname, insecure.verify_mode = False, ssl.CERT_NONE
        try:
            answer = httpx.get(f"{self.url(get['port'])}{get['path']}", verify=insecure, timeout=10)
        except httpx.TransportError:
            return False
        return 200 <= answer.status_code < 400

    def stop(self, process: subprocess.Popen[str]) -> int:
        """End it as a kubelet does, but with a second signal once readiness is withdrawn."""
        process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + 60
        # A worker has no balancer to wait for, and ends at once.
        while process.poll() is None and self.passes("readinessProbe"):
            assert time.monotonic() < until_s, self.log
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(60)

    def _command(self, name: str) -> list[str]:
        container = self.container(name)
        given = (*container.get("command", ()), *container.get("args", ()))
        own = () if "command" in container else ENTRYPOINT
        return [*own, *(self._here(each, container) for each in given)]

    def _value_of(self, variable: Object) -> str | None:
        if "value" in variable:
            assert isinstance(variable["value"], str), variable
            return str(variable["value"])
        wanted = variable["valueFrom"]["secretKeyRef"]
        found = self.secrets.get(wanted["name"], {}).get(wanted["key"])
        assert found is not None or wanted.get("optional"), f"no Secret has {wanted}"
        return None if found is None else found.decode()

    def _here(self, value: str, container: Object) -> str:
        """Say a value of the pod in the words of this machine."""
        if value == _ANY_ADDRESS:
            return "127.0.0.1"
        numbers = {one["containerPort"] for one in container.get("ports", ())}
        if value.isdigit() and int(value) in numbers:
            return str(self._port(int(value)))
        if re.match(r"(postgresql|rediss?|https?)://", value):
            return self.address(value)
        mounts = {
            one["mountPath"]: self._volumes[one["name"]] / one.get("subPath", "")
            for one in container.get("volumeMounts", ())
        }
        paths = "|".join(re.escape(one) for one in sorted(mounts, key=len, reverse=True))
        mapped = re.sub(
            rf"(?<![\w/.-])({paths})(?=[/\"]|$)", lambda found: str(mounts[found[1]]), value
        )
        assert mapped != value or not value.startswith("/"), f"{value} is mounted nowhere"
        return mapped

    def _port(self, number: int) -> int:
        if number not in self.ports:
            self.ports[number] = free_port()
        return self.ports[number]

    def _made(self, volume: Object) -> Path:
        """Make a volume: empty, or with the files of a Secret; or find a claim's."""
        name = volume["name"]
        if "persistentVolumeClaim" in volume:
            return self.claims[volume["persistentVolumeClaim"]["claimName"]]
        path = self.directory / name
        path.mkdir(exist_ok=True)
        if "secret" in volume:
            content = self.secrets[volume["secret"]["secretName"]]
            for key, value in content.items():
                (path / key).write_bytes(value)
                (path / key).chmod(volume["secret"].get("defaultMode", 0o644))
        else:
            assert "emptyDir" in volume, volume
        return path

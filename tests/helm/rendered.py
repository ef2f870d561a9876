"""The chart, rendered by Helm's own library, as the objects that a cluster would be given."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import helm_python
import yaml

CHART: Final = Path(__file__).parents[2] / "helm" / "sluice"
CI: Final = sorted((CHART / "ci").glob("*-values.yaml"))
# By what a file is about.
SHAPES: Final = [path.name.removesuffix("-values.yaml") for path in CI]
RELEASE: Final = "rel"

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    """Hold the objects of a rendering."""

    objects: tuple[Object, ...]

    def of(self, kind: str) -> dict[str, Object]:
        """Return the objects of a kind, by name."""
        return {one["metadata"]["name"]: one for one in self.objects if one["kind"] == kind}

    def pods(self) -> Iterator[tuple[str, Object]]:
        """Yield the pods' templates with the names of what makes them."""
        for one in self.objects:
            if one["kind"] in ("Deployment", "StatefulSet", "Job"):
                yield f"{one['kind']}/{one['metadata']['name']}", one["spec"]["template"]

    def component(self, name: str) -> tuple[Object, Object]:
        """Return what makes the pods of a component, and their template."""
        [found] = [
            one
            for one in self.objects
            if one["kind"] in ("Deployment", "StatefulSet", "Job")
            and one["metadata"]["labels"]["app.kubernetes.io/component"] == name
        ]
        return found, found["spec"]["template"]

    def secrets(self) -> dict[str, dict[str, bytes]]:
        """Return the content of the Secrets, by name and key."""
        return {
            name: {key: b64decode(value) for key, value in one.get("data", {}).items()}
            | {key: value.encode() for key, value in one.get("stringData", {}).items()}
            for name, one in self.of("Secret").items()
        }


def values_of(shape: str) -> dict[str, Any]:
    """Read a file of `ci/`."""
    values: dict[str, Any] = yaml.safe_load((CHART / "ci" / f"{shape}-values.yaml").read_text())
    return values


def render(values: Mapping[str, Any]) -> Rendered:
    """Render with these values. Raises: `helm_python.HelmError`."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(dict(values), name=RELEASE, namespace="prod")
    objects = [
        one
        for path, text in sorted(files.items())
        if path.endswith(".yaml")
        for one in yaml.safe_load_all(text)
        if one is not None
    ]
    return Rendered(tuple(objects))


@cache
def rendered(shape: str) -> Rendered:
    """Render with the values of a file of `ci/`."""
    return render(values_of(shape))


def with_changes(shape: str, **changes: Any) -> dict[str, Any]:
    """Return a file's values with others at dotted paths, `__` standing for the dots."""
    values = values_of(shape)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = values
        for each in parents:
            place = place.setdefault(each, {})
        place[last] = value
    return values

"""`python -m tests.gpu` where there is what a bare GPU machine has, and nothing else.

Every part runs to its end, and is cut off in its middle. There is no GPU: it all runs on the CPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bare_environment import NoPackageIndex, make_bare_environment
from tests.gpu.asked import Asked
from tests.gpu.deadline import Deadline
from tests.gpu.stages import PARTS, list_stages

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
# The version of the first is the one that such a machine has.
THERE = (
    *("transformers==5.17.0", "torch", "triton", "numpy", "tokenizers", "safetensors", "jinja2"),
    *("pytest", "pytest-xdist"),
)
STAGES = [
    stage
    for part in PARTS
    for stage in list_stages(part, Asked(device="cpu", deadline=Deadline(60), quick=True))
]
QUICK = ("--device", "cpu", "--quick")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of such a machine."""
    return make(tmp_path_factory.mktemp("bare"), *THERE)


def make(directory: Path, *roots: str) -> Path:
    try:
        return make_bare_environment(directory, roots)
    except NoPackageIndex as exc:
        pytest.skip(str(exc))


def environment(**more: str) -> Mapping[str, str]:
    """Give what a shell has, and nothing that points to other packages or models."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONNOUSERSITE": "1", "HF_HUB_OFFLINE": "1"}
    return {**kept, **quiet, **more}


def test_nothing_else_is_there(python: Path) -> None:
    """The environment has the version that was asked for, and lacks what the gateway needs."""
    code = (
        "import importlib.metadata as m; print(m.version('transformers')); "
        "print(*(d.metadata['Name'] for d in m.distributions()))"
    )
    done = subprocess.run(
        [python, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    version, names = done.stdout.splitlines()
    assert version == "5.17.0"
    assert {"torch", "triton", "pytest", "pytest-xdist"} <= set(names.split())
    absent = {"starlette", "uvicorn", "sqlalchemy", "SQLAlchemy", "redis", "msgspec", "hypothesis"}
    assert not absent & set(names.split())


def test_every_part_runs(python: Path, tmp_path: Path) -> None:
    """Each stage ends well and meets its goals, and all that it writes fits what comes back."""
    code = (
        "import gc, sys\n"
        "from tests.gpu.__main__ import parse, run_one\n"
        f"for stage in {STAGES!r}:\n"
        # Engines give their memory back: what stages before have imported need not be searched.
        "    gc.freeze()\n"
        f"    if run_one(parse(['--stage', stage, *{QUICK!r}, '--out', sys.argv[1]])):\n"
        "        sys.exit(stage)\n"
    )
    command = [python, "-c", code, str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report = read(tmp_path / "out")
    assert all(entry["complete"] for entry in report["parts"].values())
    assert report["versions"]["transformers"] == "5.17.0"
    titles = " ".join(report["parts"])
    for title in ("kernels", "Qwen3ForCausalLM", "tune", "quality", "nano", "step-sweep", "soak"):
        assert title in titles
    # A device machine hands few files back, from few folders down.
    files = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.*")]
    assert len(files) <= 8
    assert max(len(path.parts) for path in files) <= 3


def test_every_part_leaves_what_it_had_measured(python: Path, tmp_path: Path) -> None:
    """A stage that is killed in its middle keeps its figures, marked, and the next one begins.

    The last one is cut off with the run itself.
    """
    out, said = tmp_path / "out", tmp_path / "said"
    with said.open("w") as file:
        run = subprocess.Popen(
            [python, "-m", "tests.gpu", *QUICK, "--out", str(out)],
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    cut: dict[str, dict[str, Any]] = {}
    try:
        for stage in STAGES:
            title, figures = wait_for_half_a_part(run, out, set(cut))
            pid = child_of(run.pid)
            assert stage in Path(f"/proc/{pid}/cmdline").read_text().split("\0"), stage
            os.killpg(pid, signal.SIGKILL)
            cut[title] = figures
            if stage == STAGES[-1]:
                run.kill()
                # Its stage would go on for a second: the signal that it sends itself ends it.
                assert run.wait(30) == -signal.SIGKILL
    finally:
        run.kill()
        run.wait()
    report = read(out)
    assert len(cut) == len(STAGES)
    for title, figures in cut.items():
        assert report["parts"][title]["complete"] is False, title
        assert report["figures"].keys() >= figures.keys() > set(), title
    for stage in STAGES[:-1]:
        assert f"{stage} broke: killed by SIGKILL" in said.read_text()


def test_kernel_tests_run_side_by_side(python: Path, tmp_path: Path) -> None:
    """What such a machine has suffices for tests in several processes at once."""
    (tmp_path / "test_some.py").write_text(
        "import os\n"
        "def test_good(): assert os.environ['PYTEST_XDIST_WORKER_COUNT'] == '2'\n"
        "def test_bad(): assert False\n"
    )
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.gpu.kernel_tests import run_kernel_tests\n"
        "*_, part = run_kernel_tests(timeout_s=60, tests=Path(sys.argv[1]), num_workers=2)\n"
        "print(*(f'{key}={figure.value}' for key, figure in part.figures.items()))\n"
    )
    done = subprocess.run(
        [python, "-c", code, str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    name = "correctness_kernel_tests"
    counts = f"{name}_passed=1 {name}_failed=1 {name}_skipped=0 {name}_left_out=0"
    assert done.stdout.strip() == counts


def test_peer_of_that_version_answers(python: Path, tmp_path: Path) -> None:
    """The peer's continuous batching computes there what it computes in a static batch."""
    # On a CPU, but not on a GPU, it asks psutil for the memory.
    more = make(tmp_path / "more", "psutil").parents[1]
    [site] = more.glob("lib/*/site-packages")
    code = (
        "from engine.demo import MODEL_DIR\n"
        "from scheduler.bench.transformers_peer import TransformersPeer\n"
        "peer = TransformersPeer(MODEL_DIR, dtype='float32', device='cpu')\n"
        "prompts = [[10 + n, 20, 30] for n in range(3)]\n"
        "_, expected = peer.generate(prompts, 6)\n"
        "for _ in range(2):\n"
        "    _, tokens = peer.generate_batch(prompts, 6, warm=True)\n"
        "    assert tokens == expected, (tokens, expected)\n"
        "peer.close()\n"
    )
    done = subprocess.run(
        [python, "-c", code],
        cwd=ROOT,
        env=environment(PYTHONPATH=str(site)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def wait_for_half_a_part(
    run: subprocess.Popen[bytes], out: Path, known: set[str]
) -> tuple[str, dict[str, Any]]:
    """Return the title of a part that is being measured and not `known`, with its figures."""
    deadline = Deadline(240)
    for report in changes(out):
        assert run.poll() is None, "the run ended"
        assert not deadline.passed
        for title, entry in report.get("parts", {}).items():
            if not entry["complete"] and title not in known:
                return title, {key: report["figures"][key] for key in entry["figures"]}
    raise AssertionError


def changes(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the report whenever there is another, and nothing again and again in between."""
    seen = None
    while True:
        path = out / "gpu-cpu.json"
        found = path.stat().st_mtime_ns if path.exists() else None
        # To read it takes longer than to look.
        yield read(out) if found != seen else {}
        seen = found
        time.sleep(0.005)


def read(out: Path) -> dict[str, Any]:
    path = out / "gpu-cpu.json"
    # It is never half a file, whoever is killed when.
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return report


def child_of(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)

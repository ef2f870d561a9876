"""What the product's code does not hold: read as a tree, so that no spelling gets around it.

Ruff's rules (S102, S301 to S307, S506, S60x, S608, S614) say the same of most of it where it is
written. This knows what they do not: which files may start a program or a connection, and which
words a statement of SQL may be put together from.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("engine", "scheduler", "gateway", "admin_ui", "migrations")

# What runs what it reads, and what copies code between processes.
MODULES: Final = frozenset(
    {
        *("pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
        *("jsonpickle", "pickletools", "code", "codeop", "pty", "xmlrpc"),
    }
)
CALLS: Final = frozenset(
    {
        *("eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "yaml.unsafe_load"),
        *("yaml.full_load", "numpy.load", "np.load", "os.system", "os.popen", "os.execv"),
        *("torch.jit.load", "torch.package.PackageImporter", "logging.config.fileConfig"),
        *("StaticFiles", "starlette.staticfiles.StaticFiles"),
    }
)
KEYWORDS: Final = frozenset({("shell", True), ("allow_pickle", True), ("trust_remote_code", True)})

# Who starts a program, and which: none of a request's.
STARTS: Final = {
    "engine/torch_build.py": "pip, when Sluice is installed",
    "engine/native/compiler.py": "the compiler of the operators",
    "scheduler/bench/scheduler_bench.py": "a process of its own for each figure",
    "scheduler/bench/report.py": "git, for a commit's name",
    "gateway/services/constraints/checkers.py": "our own child that tries grammars",
    "gateway/cli/observe.py": "Prometheus",
    "gateway/bench/subjects.py": "what is measured",
    "gateway/store/postgres_server.py": "initdb",
    "gateway/store/supervisor.py": "PostgreSQL and Valkey",
    "gateway/store/embedded.py": "the supervisor of those",
    "gateway/store/backup/programs.py": "pg_dump and pg_restore",
}
# Who calls out by HTTP: to an address that an operator has set.
CALLS_OUT: Final = {
    "gateway/bench/subjects.py": "a bench of our own server",
    "gateway/cli/admin_client.py": "the admin API of SLUICE_ADMIN_URL",
    "gateway/cli/public_client.py": "the API of SLUICE_BASE_URL",
    "gateway/doctor/cache_audit.py": "a server on this machine",
    "gateway/doctor/place.py": "the probes of a server on this machine",
    "gateway/services/sign_in/issuer.py": "SLUICE_OIDC_ISSUER and what it names, never redirected",
    "gateway/services/quotas/webhook.py": "SLUICE_WEBHOOK_URL, pinned and never redirected",
    "gateway/telemetry/otlp_sender.py": "OTEL_EXPORTER_OTLP_ENDPOINT",
}
CLIENTS: Final = (
    "httpx",
    "requests",
    "aiohttp",
    "urllib.request",
    "http.client",
    "urllib3",
    "opentelemetry.exporter",
)
PROGRAMS: Final = ("subprocess", "multiprocessing")
# What runs a statement; its text may be made of constants alone.
RUNS: Final = frozenset(
    {
        *("text", "execute", "executemany", "exec_driver_sql", "scalar", "scalars", "fetch"),
        *("fetchval", "fetchrow", "DDL", "literal_column"),
    }
)
# Names in a statement's text that are no constants of a module, and where they come from.
MADE: Final = {
    ("gateway/store/logins.py", "grant"): "two constants and quote_ident's answer",
    ("gateway/store/postgres_roles.py", "role"): "a constant, in a loop over two",
    ("gateway/store/postgres_roles.py", "statement"): "of a table of constants",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for floor in PRODUCT:
        for path in sorted((ROOT / floor).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        return [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return []


def dotted(node: ast.AST) -> str:
    """Spell `a.b.c`; what is no such name is empty."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Yield what a module has and may not."""
    for node in ast.walk(tree):
        for name in imported(node):
            if name.split(".")[0] in MODULES:
                yield f"{file}:{node.lineno} imports {name}"  # type: ignore[attr-defined]
            if name.split(".")[0] in PROGRAMS and file not in STARTS:
                yield f"{file}:{node.lineno} starts programs"  # type: ignore[attr-defined]
            if name.startswith(CLIENTS) and file not in CALLS_OUT:
                yield f"{file}:{node.lineno} calls out by {name}"  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        if called in CALLS:
            yield f"{file}:{node.lineno} calls {called}"
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", None)
            if (keyword.arg, value) in KEYWORDS:
                yield f"{file}:{node.lineno} passes {keyword.arg}={value}"
        # Revisions of the schema run on no words but their own.
        if called.rpartition(".")[2] in RUNS and node.args and not file.startswith("migrations/"):
            for name in open_words(node.args[0]):
                if (file, name) not in MADE:
                    yield f"{file}:{node.lineno} puts {name or 'something'} into a statement"


def open_words(statement: ast.expr) -> Iterator[str]:
    """Yield the names that a text is put together from, but for a module's constants."""
    if isinstance(statement, ast.JoinedStr):
        for part in statement.values:
            if isinstance(part, ast.FormattedValue):
                name = dotted(part.value)
                if not name.rpartition(".")[2].isupper():
                    yield name
    elif isinstance(statement, ast.BinOp) and isinstance(statement.op, ast.Add | ast.Mod):
        yield from open_words(statement.left)
        yield from open_words(statement.right)
        for side in (statement.left, statement.right):
            if not isinstance(side, ast.Constant | ast.JoinedStr | ast.BinOp):
                name = dotted(side)
                if not name.rpartition(".")[2].isupper():
                    yield name
    elif isinstance(statement, ast.Call) and getattr(statement.func, "attr", "") == "format":
        yield "what it formats"


def test_nothing_runs_what_it_reads() -> None:
    """No module unpickles, evaluates, loads code with data, starts a shell, calls out or makes SQL
    of anything but constants; the files that may are listed with their reasons."""
    assert [fault for file, tree in sources() for fault in faults(file, tree)] == []


def test_the_lists_hold_nothing_that_is_not_there() -> None:
    """A file that starts no program, or calls nobody, is taken off its list."""
    trees = dict(sources())
    for listed, names in ((STARTS, PROGRAMS), (CALLS_OUT, CLIENTS)):
        for file in listed:
            found = [name for node in ast.walk(trees[file]) for name in imported(node)]
            assert any(name.startswith(names) for name in found), file
    made = {
        (file, name.id)
        for file, tree in trees.items()
        for name in ast.walk(tree)
        if isinstance(name, ast.Name)
    }
    assert set(MADE) <= made


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import cloudpickle as c",
        "import torch\ntorch.load('a')",
        "import yaml\nyaml.load(x)",
        "eval('1')",
        "def f():\n    import subprocess",
        "import httpx",
        "run(['a'], shell=True)",
        "load(x, allow_pickle=True)",
        "connection.execute(text(f'SELECT {name}'))",
        "connection.fetch('SELECT ' + name)",
        "connection.fetchval('SELECT %s' % name)",
        "connection.execute('SELECT {}'.format(name))",
    ],
)
def test_each_ban_is_one(source: str) -> None:
    """Each of these in a module of the product is found."""
    assert list(faults("gateway/new.py", ast.parse(source)))


def test_constants_and_parameters_pass() -> None:
    """A statement of constants, with what is asked beside it, is what there is to be."""
    source = "connection.execute(text(f'SET LOCAL x = {_TIMEOUT_S}'), {'a': name})\nf('a' + _B)"
    assert list(faults("gateway/new.py", ast.parse(source))) == []

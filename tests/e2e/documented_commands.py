"""What a test runs in place of documented commands that it cannot run as they stand.

A command that is in no table here runs as it is printed. Each entry must be of some document.
"""

from __future__ import annotations

from typing import Final

# Words that a reader replaces; `{…}` is filled in by the test.
WORDS: Final = {
    "127.0.0.1:8000": "{authority}",
    "sluice_live_…": "{key}",
    "KEY_ID": "{kid}",
    "FINGERPRINT": "$(sluice apply -f tenants.toml --dry-run --json | "
    "python -c 'import json, sys; print(json.load(sys.stdin)[\"plan\"])')",
    " FILE ": " examples/traces/contest.csv ",
}

# Where a command has these words, flags are added that make it small.
SMALLER: Final = {
    "make ": "--dry-run",
    "sluice serve ": "--port 0 --admin-port 0 --data-dir {own_data_dir}",
    "sluice simulate --trace": "--limit 60",
    "sluice bench scheduler": (
        "--running 4 --queued 8,16,32 --tenants 4 --steps 4 --rounds 1 --out ."
    ),
    "sluice bench engine": "--rounds 1 --no-peers --out .",
    "python -m tests.gpu": "--list",
}

INSTEAD: Final = {
    # Where the others run, it would be read by them.
    "sluice config init": "sluice config init first.toml",
    # The default shape has 30 million parameters.
    "sluice bench engine": "sluice bench engine --shape demo --batch 1 --workload decode-sweep",
}

# Commands, and how snippets begin, with where they are run instead, or why they are not.
NOT_RUN: Final = {
    "sluice admin create ann@example.org --role operator --subject 248289761001": (
        "an issuer is set before; tests/admin_ui/test_oidc.py has one"
    ),
    'sluice admin update bob --subject ""': "of one who was given a subject",
    "sluice bench engine --suite": "takes an hour; its options are read",
    "sluice bench engine --shape qwen3-0.5b --dtype bfloat16 --batch 1,8 --workload decode-sweep": (
        "takes minutes and gigabytes; its options are read"
    ),
    "sluice bench engine --model ./Llama-3.2-1B-Instruct --workload nano --scale 0.25": (
        "takes minutes; its options are read"
    ),
    "sluice bench batching": "tests/scheduler/bench/test_batching_bench.py runs it",
    "sluice bench gateway": "takes minutes: three servers in turns",
    "sluice simulate --suite vtc": "takes minutes; tests/scheduler/simulator runs its parts",
    "sluice requests show req_68a0c3…": "tests/gateway/cli/test_requests_and_top.py runs it",
    "sluice db backup /backups/2026-11-25": "tests/e2e/test_restore.py runs it",
    "sluice db restore /backups/2026-11-25 --data-dir ./restored --secret /elsewhere/root": (
        "tests/e2e/test_restore.py runs it"
    ),
    "sluice serve --data-dir ./restored": "tests/e2e/test_restore.py runs it",
    "cp -a DATA_DIR/spool DEST/spool": "is of a PostgreSQL of one's own",
    'psql "$OWNER_URL" -c': "is of a PostgreSQL of one's own",
    'pg_dump --format=custom --file=DEST/database.dump "$SUPERUSER_URL"': (
        "is of a PostgreSQL of one's own"
    ),
    "cp -a DATA_DIR/files DEST/files": "is of a PostgreSQL of one's own",
    "pg_restore --single-transaction --exit-on-error --no-owner "
    '--dbname="$OWNER_URL" DEST/database.dump': "is of a PostgreSQL of one's own",
    "sluice doctor --audit": "takes minutes; test_cache_audit.py has its parts",
    "from engine.contract import": "tests/scheduler/test_offline.py runs it",
    "from anthropic import": "tests/clients/test_anthropic.py runs their SDK in its environment",
    "CREATE ROLE": "tests/gateway/store/test_logins.py runs it",
    "kv_cache_bytes = 8_000_000_000": "tests/gateway/test_model_settings.py reads it",
    "scrape_configs:": "is Prometheus's; tests/e2e/test_observe.py has promtool read one like it",
    "OTEL_EXPORTER_OTLP_ENDPOINT=": "tests/e2e/test_telling.py starts one with a receiver",
    "docker build --file": "needs a container engine; tests/helm/test_containerfile.py lints it",
    "docker run --volume": "needs a container engine",
    "helm install sluice": "needs a cluster; tests/helm/test_starts.py starts what is rendered",
    "rules:\n  custom:": "is prometheus-adapter's",
    "POST /v1/chat/completions ": "is a picture",
    '{"at":': "is a line of a log",
    "engine/ ": "is a map; tests/test_docs.py compares it with the tree",
    "root ─": "is a picture",
}

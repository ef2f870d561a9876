"""Where settings come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import OF_ONE_MODEL, Settings

# A value of each setting as an environment spells it.
SPELLED = {
    "data_dir": "/srv/sluice",
    "host": "0.0.0.0",
    "port": "8080",
    "admin_host": "::1",
    "admin_port": "8081",
    "admin_allow_plain": "true",
    "drain_accept_s": "1",
    "shutdown_grace_s": "20",
    "tls_cert": "/etc/sluice/cert.pem",
    "tls_key": "/etc/sluice/key.pem",
    "trusted_proxies": "10.0.0.0/8, fd00::/8",
    "cors_origins": "https://a.example, http://127.0.0.1:3000",
    "max_connections": "9",
    "max_connections_per_address": "8",
    "body_memory_mib": "32",
    "database_url": "postgresql://u@h/d",
    "database_owner_url": "postgresql://o@h/d",
    "redis_url": "redis://h",
    "model": "/models/m",
    "model_name": "m",
    "embedding_model": "demo",
    "embedding_model_name": "e",
    "embedding_kv_cache_bytes": "1048576",
    "embedding_matryoshka": "true",
    "models": '[{"directory": "demo"}]',
    "load_format": "dummy",
    "generation_config": "none",
    "tool_calls": "hermes",
    "reasoning": "think",
    "engine": "simulated",
    "engine_profile": "p",
    "dtype": "bfloat16",
    "weight_dtype": "fp8",
    "kv_dtype": "fp8",
    "gpu_memory_utilization": "0.5",
    "block_size": "16",
    "num_blocks": "7",
    "kv_cache_bytes": "1000000",
    "max_model_len": "100",
    "max_num_seqs": "3",
    "max_num_batched_tokens": "64",
    "max_num_queued": "5",
    "scheduler_policy": "fcfs",
    "scheduler_preset": "low-latency",
    "scheduler_max_throughput_loss": "0.1",
    "num_threads": "2",
    "native": "off",
    "prefix_caching": "false",
    "auth_grace_s": "60",
    "unknown_parameters": "ignore",
    "trace_share": "0.5",
    "trace_trusted_tenants": "acme,globex",
    "log_format": "json",
    "log_requests": "false",
    "read_rpm": "60",
    "answer_memory_mib": "64",
    "quota_build_s": "1",
    "redis_timeout_s": "0.1",
    "quota_thresholds": "60, 90",
    "audit_webhook_url": "https://hooks.example/audit",
    "audit_webhook_s": "30",
    "webhook_url": "https://hooks.example/sluice",
    "webhook_secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "webhook_allow_private": "true",
    "file_storage": "s3://bucket/prefix",
    "tenant_storage_mib": "100",
    "batch_worker": "false",
    "batch_enqueued_tokens": "1000",
    "batch_days": "7",
    "ledger_days": "90",
    "request_record_hours": "48",
    "request_records_per_minute": "100",
    "quota_event_days": "62",
    "keyed_answer_hours": "2",
    "keyed_answers_mib": "16",
    "admin_public_url": "https://sluice.example",
    "oidc_issuer": "https://issuer.example/realms/ours",
    "oidc_client_id": "sluice",
    "oidc_client_secret": "s",
    "oidc_scopes": "openid groups",
    "oidc_name": "Example",
    "oidc_role_claim": "groups",
    "oidc_roles": "ops=operator, all=viewer",
    "store_responses": "false",
    "response_days": "7",
    "tenant_responses": "100",
    "tenant_responses_mib": "16",
    "metrics_tenants": "7",
    "metrics_public": "true",
    "metrics_vllm": "true",
    "machine_usd_per_hour": "2.5",
    "init_organisation": "o",
    "init_tenants": "a, b",
    "init_keys": "k1,k2",
    "init_admin_token": "t",
}


def test_every_setting_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable of the README is read, in the form that an environment can hold."""
    assert SPELLED.keys() == Settings.model_fields.keys()
    for name, value in SPELLED.items():
        if name != "models":
            monkeypatch.setenv(f"SLUICE_{name.upper()}", value)
    settings = Settings()
    default = Settings.model_construct()
    for name in OF_ONE_MODEL:
        monkeypatch.delenv(f"SLUICE_{name.upper()}")
    monkeypatch.setenv("SLUICE_MODELS", SPELLED["models"])
    assert [table.served_name for table in Settings().models] == ["sluice-demo"]
    for name in SPELLED.keys() - {"models"}:
        assert getattr(settings, name) != getattr(default, name), name
    assert settings.block_size == 16
    assert settings.init_tenants == ("a", "b")


def test_flags_beat_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearer to the command, the stronger."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sluice.toml").write_text("port = 1\nadmin_port = 2\nmax_num_seqs = 3\n")
    monkeypatch.setenv("SLUICE_PORT", "11")
    monkeypatch.setenv("SLUICE_ADMIN_PORT", "12")
    settings = Settings(port=21)
    assert (settings.port, settings.admin_port, settings.max_num_seqs) == (21, 12, 3)


def test_a_file_that_others_could_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that anybody may change are no operator's: a start says so and ends."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sluice.toml"
    path.write_text("port = 1\n")
    assert Settings().port == 1
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="can be written by others"):
        Settings()
    path.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others"):
        Settings()
    # As /tmp is: others may add files there, and change none.
    tmp_path.chmod(0o1777)
    assert Settings().port == 1


def test_a_file_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory, which a container makes of a mount without its file, or a link to nothing, is
    no empty file: a start ends, and does not go on with defaults.
    """
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sluice.toml"
    path.mkdir()
    with pytest.raises(FileNotFoundError, match="is no file"):
        Settings()
    path.rmdir()
    path.symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="is no file"):
        Settings()
    (tmp_path / "nowhere").write_text("port = 1\n")
    assert Settings().port == 1


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cors_origins": "https://a.example/"}, "no path"),
        ({"cors_origins": "*,https://a.example"}, "alone"),
        ({"cors_origins": "a.example"}, "origin"),
        ({"webhook_url": "https://hooks.example"}, "webhook_secret"),
        ({"webhook_url": "http://hooks.example", "webhook_secret": SECRET}, "https"),
        ({"webhook_url": "https://", "webhook_secret": SECRET}, "host"),
        ({"webhook_url": "https://u:p@hooks.example", "webhook_secret": SECRET}, "host"),
        ({"webhook_url": "https://hooks.example:99999", "webhook_secret": SECRET}, "_url.*host"),
        ({"webhook_url": "https://hooks.example:0", "webhook_secret": SECRET}, "webhook_url.*host"),
        ({"webhook_url": "https://hooks..example", "webhook_secret": SECRET}, "webhook_url.*host"),
        ({"webhook_url": f"https://{'a' * 64}.x", "webhook_secret": SECRET}, "webhook_url.*host"),
        ({"webhook_url": "https://[::1/", "webhook_secret": SECRET}, "webhook_url.*host"),
        ({"webhook_url": "https://a b/", "webhook_secret": SECRET}, "webhook_url.*host"),
        ({"audit_webhook_url": "https://hooks.example"}, "webhook_secret"),
        ({"audit_webhook_url": "http://hooks.example", "webhook_secret": SECRET}, "audit.*https"),
        ({"audit_webhook_url": "file:///etc/passwd", "webhook_secret": SECRET}, "audit.*host"),
        ({"webhook_secret": "whsec_c2hvcnQ="}, "24 to 64"),
        ({"webhook_secret": SECRET.removeprefix("whsec_")}, "whsec_"),
        ({"quota_thresholds": "0"}, "1 to 1000"),
        ({"quota_thresholds": "50,50"}, "different"),
    ],
)
def test_a_webhook_that_could_not_work_is_refused(given: dict[str, str], says: str) -> None:
    """A mistake is told at the start, not when the first event is lost."""
    with pytest.raises(ValueError, match=says):
        Settings.model_validate(given)


def test_an_owner_without_a_database_is_refused() -> None:
    """The URL of an owner says whom to migrate as, not where: alone it is a mistake."""
    with pytest.raises(ValueError, match="goes with a database_url"):
        Settings.model_validate({"database_owner_url": "postgresql://o@h/d"})


def test_half_of_a_certificate_is_refused() -> None:
    """A certificate without its key, or a key alone, is a mistake and not plain HTTP."""
    with pytest.raises(ValueError, match="go together"):
        Settings(tls_cert=Path("cert.pem"))

"""Settings: flags of the command line, then `SLUICE_*`, then `sluice.toml`, then defaults."""

from __future__ import annotations

import re
from base64 import b64decode
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from engine.owned_file import why_not_owned
from gateway.data_dir import default_data_dir
from gateway.environment import PREFIX, is_service_link
from gateway.model_settings import ModelOptions, ModelTable, check_tables
from gateway.readable_number import read_number

Network = IPv4Network | IPv6Network

# As browsers spell it: no capitals, no path, no slash at the end.
_ORIGIN: Final = re.compile(r"https?://[a-z0-9._\-\[\]:]+", re.ASCII)

# Compared letter by letter with what its tokens say.
_ISSUER: Final = re.compile(
    r"https://[a-z0-9._\-\[\]:]+(?:/[A-Za-z0-9._~/\-]*)?"
    r"|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?(?:/[A-Za-z0-9._~/\-]*)?",
    re.ASCII,
)
_PLATFORM_ROLES: Final = ("owner", "operator", "viewer")

# What says of one model what a table of `[[models]]` says of each.
OF_ONE_MODEL: Final = (
    "model",
    "model_name",
    "embedding_model",
    "embedding_model_name",
    "embedding_kv_cache_bytes",
    "embedding_matryoshka",
    "num_blocks",
)


class Settings(ModelOptions, BaseSettings):
    """Hold what an operator can set for one process; nothing here changes while it runs."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        # A template that leaves a variable empty means that it has nothing to say.
        env_ignore_empty=True,
        toml_file="sluice.toml",
        extra="forbid",
        frozen=True,
    )

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Where secrets and the embedded stores live.",
    )
    host: str = Field(default="127.0.0.1", description="Address of the public API.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port of the API; 0: any free.")
    admin_host: str = Field(default="127.0.0.1", description="Address of the admin API.")
    admin_port: int = Field(
        default=8001, ge=0, le=65535, description="Port of the admin API; 0: any free one."
    )
    admin_allow_plain: bool = Field(
        default=False,
        description="Let the admin API, plain HTTP, have an address that others can reach.",
    )

    admin_public_url: str | None = Field(
        default=None,
        description="Where browsers reach the pages, as `https://sluice.example`; unset: here.",
    )
    oidc_issuer: str | None = Field(
        default=None,
        description="Where people may sign in instead, as OpenID Connect has it: "
        "[admin-ui-access](docs/admin-ui-access.md).",
    )
    oidc_client_id: str | None = Field(default=None, description="Our name at that issuer.")
    oidc_client_secret: SecretStr | None = Field(
        default=None, description="Our secret there; unset: a client without one."
    )
    oidc_scopes: str = Field(
        default="openid profile email", description="What is asked for there; `openid` is needed."
    )
    oidc_name: str = Field(
        default="single sign-on", description="What people call the issuer, on the login page."
    )
    oidc_role_claim: str | None = Field(
        default=None,
        description="Claim that gives a role to who was not invited; unset: nothing does.",
    )
    oidc_roles: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Roles by that claim's values, as `ops=operator`, by commas; the first counts.",
    )

    drain_accept_s: float = Field(
        default=5.0,
        ge=0,
        description="Seconds that SIGTERM gives a balancer to look elsewhere.",
    )
    shutdown_grace_s: float = Field(
        default=60.0,
        gt=0,
        description="Seconds from a signal to the exit; running requests have all but the last 10.",
    )

    tls_cert: Path | None = Field(
        default=None,
        description="Certificate chain (PEM) of the public API; with `tls_key`: HTTPS.",
    )
    tls_key: Path | None = Field(default=None, description="The certificate's private key (PEM).")
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode] = Field(
        default=(),
        description="Networks whose `x-forwarded-for` is believed, as `10.0.0.0/8`, by commas.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Whose web pages may call the API: `https://a.example` by commas, or `*`.",
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Open connections at most; fewer where the process may not open as many files.",
    )
    max_connections_per_address: int = Field(
        default=256,
        ge=1,
        description="Open connections of one address, or one IPv6 /64; proxies are exempt.",
    )
    body_memory_mib: int = Field(
        default=256,
        ge=16,
        description="MiB of bodies that are being read, of all clients; a tenant: a quarter.",
    )
    answer_memory_mib: int = Field(
        default=256,
        ge=16,
        description="MiB of answers gathered or not read yet, in all; a tenant: a quarter.",
    )

    database_url: SecretStr | None = Field(
        default=None, description="PostgreSQL URL; unset: a private server in the data directory."
    )
    database_owner_url: SecretStr | None = Field(
        default=None,
        description="The same database as the owner of its tables, to migrate; unset: as above.",
    )
    redis_url: SecretStr | None = Field(
        default=None, description="Redis URL; unset: a private Valkey in the data directory."
    )
    auth_grace_s: float = Field(
        default=300.0,
        ge=0,
        description="Seconds that a known key is good while PostgreSQL is silent; "
        "a token too, for metrics, and a page that updates itself.",
    )

    model: Path | None = Field(
        default=None, description="A Hugging Face model directory; unset: the demo model."
    )
    model_name: str | None = Field(
        default=None, description="The name clients use; unset: the directory's name."
    )
    embedding_model: Path | None = Field(
        default=None,
        description="A directory of a model for /v1/embeddings, served beside, or `demo`.",
    )
    embedding_model_name: str | None = Field(
        default=None, description="The name clients use for it; unset: the directory's name."
    )
    embedding_kv_cache_bytes: int | None = Field(
        default=None, ge=1, description="Memory for its KV cache; unset: 1 GiB."
    )
    embedding_matryoshka: bool = Field(
        default=False,
        description="Its vectors may be cut short, though its config.json does not say so.",
    )
    models: tuple[ModelTable, ...] = Field(
        default=(),
        description="Several models, each a table `[[models]]` in `sluice.toml`: "
        "[models](docs/models.md).",
    )
    gpu_memory_utilization: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of a GPU's memory for weights, steps and KV cache; unset: what is free.",
    )
    block_size: Literal[16, 32, 64] = Field(default=64, description="Tokens in a KV block.")
    num_blocks: int | None = Field(default=None, ge=1, description="KV blocks; unset: by memory.")
    kv_cache_bytes: int | None = Field(
        default=None,
        ge=1,
        description="Memory for the KV cache, of `[[models]]` for all; unset: 1 GiB, or what is "
        "free on a GPU.",
    )
    num_threads: int | None = Field(
        default=None, ge=1, description="Threads of the CPU engine; unset: cores − 1, at least 1."
    )
    native: Literal["auto", "off"] = Field(
        default="auto", description="Compiled operators of the CPU engine, where they are built."
    )
    prefix_caching: bool = Field(default=True, description="Share KV blocks of equal prefixes.")

    trace_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Share of requests whose traces are sent where nothing went wrong.",
    )
    trace_trusted_tenants: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="Tenants, by commas, whose own traces are continued, not linked."
    )
    log_format: Literal["human", "json"] = Field(
        default="human", description="How the log is written: for people, or a JSON object a line."
    )
    log_requests: bool = Field(
        default=True, description="Whether the log has a line for each request with a key."
    )

    unknown_parameters: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description="`ignore`: what a request names that nobody knows goes to `x-sluice-ignored`.",
    )
    read_rpm: int = Field(
        default=600,
        ge=1,
        description="Reads a minute of a tenant at each gateway; a look at usage is ten, a change "
        "too.",
    )
    quota_build_s: float = Field(
        default=3.0,
        ge=0,
        description="Seconds that gateways get to come back to a Redis that forgot everything.",
    )
    redis_timeout_s: float = Field(
        default=0.05, gt=0, description="Seconds that a first try at checking limits may take."
    )
    quota_thresholds: Annotated[tuple[int, ...], NoDecode] = Field(
        default=(50, 80, 100),
        description="Percents of a limit whose passing is told, by commas.",
    )
    audit_webhook_url: str | None = Field(
        default=None, description="Where the audit log's head is posted; unset: nowhere."
    )
    audit_webhook_s: float = Field(
        default=60.0, ge=1, description="Seconds between two such posts at least."
    )
    webhook_url: str | None = Field(
        default=None, description="Where passed thresholds are posted; unset: nowhere."
    )
    webhook_secret: SecretStr | None = Field(
        default=None, description="What signs the posts: `whsec_` and base64 of 24 to 64 bytes."
    )
    webhook_allow_private: bool = Field(
        default=False, description="Let webhooks be private addresses, and plain HTTP."
    )

    file_storage: str | None = Field(
        default=None,
        description="A directory of files, or `s3://BUCKET/PREFIX`; unset: in the data directory.",
    )
    tenant_storage_mib: int = Field(
        default=10240, ge=1, description="MiB of files a tenant; each counts 64 KiB at least."
    )

    batch_worker: bool = Field(
        default=True, description="Whether this process runs items of batches where it has room."
    )
    batch_enqueued_tokens: int = Field(
        default=2_000_000_000,
        ge=1,
        description="Tokens that a tenant's batches may wait with, estimated.",
    )
    batch_days: int = Field(
        default=90, ge=1, description="Days that batches are remembered once they have ended."
    )

    ledger_days: int | None = Field(
        default=None,
        ge=62,
        description="Days that the ledger's rows are kept, 62 at least; sums stay. Unset: all.",
    )
    request_record_hours: int = Field(
        default=24, ge=1, le=168, description="Hours that records of finished requests are kept."
    )
    request_records_per_minute: int = Field(
        default=600,
        ge=0,
        description="Records of finished requests a minute, of a gateway; a tenant: a tenth. "
        "0: none.",
    )
    quota_event_days: int = Field(
        default=400, ge=62, description="Days that passed thresholds are kept, 62 at least."
    )
    keyed_answer_hours: int = Field(
        default=24,
        ge=1,
        le=24,
        description="Hours that the answer of an Idempotency-Key is kept; its key counts 24.",
    )
    keyed_answers_mib: int = Field(
        default=256, ge=1, description="MiB of those answers a tenant; its oldest go first."
    )

    store_responses: bool = Field(
        default=True, description="Whether `/v1/responses` stores what is not told otherwise."
    )
    response_days: int = Field(default=30, ge=1, description="Days that stored responses are kept.")
    tenant_responses: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Stored responses a tenant; its oldest go first.",
    )
    tenant_responses_mib: int = Field(
        default=256, ge=1, description="MiB of stored responses a tenant; its oldest go first."
    )

    metrics_tenants: int = Field(
        default=20,
        ge=0,
        le=100,
        description="Tenants with a label in metrics, the most tokens first; others: `other`.",
    )
    metrics_public: bool = Field(
        default=False,
        description="Let whoever reaches the admin port read its `/metrics` without a token.",
    )
    metrics_vllm: bool = Field(
        default=False, description="Show metrics under vLLM's names too, as `vllm:…`."
    )
    machine_usd_per_hour: float = Field(
        default=0.0, ge=0, description="What this machine costs an hour, for the cost of a token."
    )

    init_organisation: str = Field(
        default="default", description="Name of the organisation made at the first start."
    )
    init_tenants: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("acme", "globex"),
        description="Tenants made at the first start, separated by commas.",
    )
    init_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description="Keys of the tenants made at the first start, in their order, by commas; "
        "unset: drawn.",
    )
    init_admin_token: SecretStr | None = Field(
        default=None, description="The admin token of the first start; unset: drawn."
    )

    @field_validator("block_size", mode="before")
    @classmethod
    def _read_integer(cls, value: object) -> object:
        # A Literal of integers does not take the strings that an environment holds.
        return int(value) if isinstance(value, str) and value.isdigit() else value

    @field_validator("kv_cache_bytes", mode="before")
    @classmethod
    def _read_bytes(cls, value: object) -> object:
        return read_number(value) if isinstance(value, str) else value

    @field_validator("admin_public_url")
    @classmethod
    def _check_public_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        value = value.rstrip("/")
        if not _ORIGIN.fullmatch(value):
            raise ValueError("it must be https://HOST or http://HOST:PORT, without a path")
        return value

    @field_validator("oidc_issuer")
    @classmethod
    def _check_issuer(cls, value: str | None) -> str | None:
        if value is not None and not _ISSUER.fullmatch(value):
            raise ValueError("it must be https://HOST, with a path perhaps, or of this machine")
        return value

    @field_validator("oidc_roles")
    @classmethod
    def _check_roles(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pair in value:
            name, _, role = pair.rpartition("=")
            if not name or role not in _PLATFORM_ROLES:
                raise ValueError(f"each must be VALUE=ROLE, of {', '.join(_PLATFORM_ROLES)}")
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value != ("*",) and not all(map(_ORIGIN.fullmatch, value)):
            raise ValueError("an origin is https://HOST or http://HOST:PORT, no path; or * alone")
        return value

    @field_validator("quota_thresholds")
    @classmethod
    def _check_thresholds(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if any(not 1 <= percent <= 1000 for percent in value) or len(set(value)) < len(value):
            raise ValueError("they must be different whole numbers from 1 to 1000")
        return value

    @field_validator("webhook_secret")
    @classmethod
    def _check_webhook_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            text = value.get_secret_value()
            try:
                num_bytes = len(b64decode(text.removeprefix("whsec_"), validate=True))
            except ValueError:
                num_bytes = 0
            if not text.startswith("whsec_") or not 24 <= num_bytes <= 64:
                raise ValueError("it must be 'whsec_' and the base64 of 24 to 64 bytes")
        return value

    @field_validator(
        "init_tenants",
        "init_keys",
        "trusted_proxies",
        "quota_thresholds",
        "cors_origins",
        "trace_trusted_tenants",
        "oidc_roles",
        mode="before",
    )
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("models")
    @classmethod
    def _check_models(cls, value: tuple[ModelTable, ...]) -> tuple[ModelTable, ...]:
        check_tables(value)
        return value

    @model_validator(mode="after")
    def _check_short_form(self) -> Settings:
        if self.models:
            for name in OF_ONE_MODEL:
                if getattr(self, name) not in (None, False):
                    raise ValueError(
                        f"{name} is of a server without [[models]]: say it in a table, or leave "
                        "the tables out"
                    )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together")
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> Settings:
        is_one = (self.host, self.port) == (self.admin_host, self.admin_port)
        if is_one and self.port:
            raise ValueError(
                f"the API and the admin API cannot both have port {self.port}: choose another with "
                "--admin-port, or SLUICE_ADMIN_PORT"
            )
        return self

    @model_validator(mode="after")
    def _check_oidc(self) -> Settings:
        if self.oidc_issuer is None:
            return self
        for name in ("oidc_client_id", "admin_public_url"):
            if getattr(self, name) is None:
                raise ValueError(f"oidc_issuer goes with {name}")
        if "openid" not in self.oidc_scopes.split():
            raise ValueError("oidc_scopes must have openid")
        if (self.oidc_role_claim is None) != (not self.oidc_roles):
            raise ValueError("oidc_role_claim and oidc_roles go together")
        return self

    @model_validator(mode="after")
    def _check_owner(self) -> Settings:
        if self.database_owner_url is not None and self.database_url is None:
            raise ValueError("database_owner_url goes with a database_url")
        return self

    @model_validator(mode="after")
    def _check_webhook(self) -> Settings:
        for name in ("webhook_url", "audit_webhook_url"):
            url = getattr(self, name)
            if url is None:
                continue
            schemes = ("https", "http") if self.webhook_allow_private else ("https",)
            if not _is_to_a_host(url, schemes):
                raise ValueError(f"{name} must begin with {'://, '.join(schemes)}:// and a host")
            if self.webhook_secret is None:
                raise ValueError(f"{name} needs a webhook_secret to sign with")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        path = Path("sluice.toml")
        if (path.exists() or path.is_symlink()) and not path.is_file():
            # A container's runtime makes a directory of a mount whose file is not there.
            raise FileNotFoundError(
                "sluice.toml is there, and is no file: remove it, or put there what is to be read"
            )
        if path.exists() and (reason := why_not_owned(path)):
            raise PermissionError(
                f"sluice.toml is not read, since it may be somebody else's: {reason}; change its "
                "owner and mode, or start elsewhere"
            )
        assert isinstance(env_settings, EnvSettingsSource), "as pydantic-settings has it"
        env_settings.env_vars = {
            name: value
            for name, value in env_settings.env_vars.items()
            if not is_service_link(name.removeprefix(PREFIX.lower()), value or "")
        }
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))


def _is_to_a_host(url: str, schemes: tuple[str, ...]) -> bool:
    """Tell whether a URL names a host that can be looked up, and a port that there can be."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    is_plain = "@" not in parts.netloc and not re.search(r"\s", parts.netloc)
    return parts.scheme in schemes and bool(host) and port != 0 and is_plain

"""The admin API of the settings: all of them, and nothing secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.api.admin.config import shown_settings
from gateway.credentials import ADMIN_PREFIX, KEY_PREFIX, new_token
from gateway.settings import Settings


def test_every_setting_is_shown_as_it_holds() -> None:
    """By its name, as JSON has it."""
    shown = shown_settings(Settings(data_dir=Path("/srv/sluice"), port=9000))
    assert set(shown) == set(Settings.model_fields)
    assert (shown["data_dir"], shown["port"], shown["database_url"]) == ("/srv/sluice", 9000, None)
    json.dumps(shown)


def test_no_secret_is_shown() -> None:
    """Neither a key nor a token, though that there is one is."""
    key, admin = new_token(KEY_PREFIX).text, new_token(ADMIN_PREFIX).text
    settings = Settings(
        init_tenants=("a",),
        init_keys=(SecretStr(key),),
        init_admin_token=SecretStr(admin),
        webhook_url="https://hooks.example/T0/secret?token=secret",
        webhook_secret=SecretStr("whsec_" + "c2VjcmV0" * 4),
    )
    shown = shown_settings(settings)
    assert (shown["webhook_url"], shown["webhook_secret"]) == (
        "https://hooks.example/***",
        "***",
    )
    assert (shown["init_keys"], shown["init_admin_token"]) == (["***"], "***")
    assert key not in json.dumps(shown)
    assert admin not in json.dumps(shown)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://ann:pw@db.internal:5432/sluice",
            "postgresql://ann:***@db.internal:5432/sluice",
        ),
        ("postgresql://ann:p@w@db/sluice", "postgresql://ann:***@db/sluice"),
        ("postgresql://ann@db/sluice", "postgresql://ann@db/sluice"),
        ("postgresql://db/sluice?user=ann&password=pw", "postgresql://db/sluice?***"),
        ("redis://:pw@cache:6379/0", "redis://:***@cache:6379/0"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("postgresql://[pw", "***"),
    ],
)
def test_a_stores_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """An operator sees which store it is, and nobody what opens it."""
    settings = Settings(database_url=SecretStr(url), redis_url=SecretStr(url))
    view = shown_settings(settings)
    assert (view["database_url"], view["redis_url"]) == (shown, shown)

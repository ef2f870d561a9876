"""Tables of `[[models]]`, and how they share what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model_settings import ModelOptions, ModelTable, kv_shares
from gateway.settings import Settings

_DOCUMENT = Path(__file__).parents[2] / "docs/models.md"


def tables(*shares: float | None) -> list[ModelTable]:
    return [
        ModelTable.model_validate({"directory": "demo", "name": f"m{n}", "kv_share": share})
        for n, share in enumerate(shares)
    ]


@given(st.lists(st.none() | st.floats(0.001, 1), min_size=1, max_size=16))
def test_shares_never_add_up_to_more_than_there_is(asked: list[float | None]) -> None:
    """What is named is kept, what is not has equal parts of the rest, and nobody has nothing.

    Where that cannot be, it is refused.
    """
    named = sum(share for share in asked if share is not None)
    try:
        shares = kv_shares(tables(*asked))
    except ValueError:
        assert named > 1 or (None in asked and named > 1 - 1e-6)
        return
    assert sum(shares) <= 1 + 1e-6
    assert min(shares) > 0
    assert all(want in (None, got) for want, got in zip(asked, shares, strict=True))
    left = {got for want, got in zip(asked, shares, strict=True) if want is None}
    assert len(left) <= 1
    if None in asked:
        assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(
    ("models", "table", "key", "said"),
    [
        ([{}, {}], 1, "name", "two models are called 'sluice-demo'"),
        ([{}, {"name": "b", "aliases": ["sluice-demo"]}], 1, "aliases", "two models"),
        ([{"name": "a", "aliases": ["x", "a"]}], 0, "aliases", "'a' is its name already"),
        ([{"name": "a,b"}], 0, "name", "no comma"),
        ([{"name": ""}], 0, "name", "1 to 200 characters"),
        ([{"kv_share": 0.7}, {"name": "b", "kv_share": 0.4}], 1, "kv_share", "1.1"),
        ([{"kv_share": 1.0}, {"name": "b"}], 0, "kv_share", "leave nothing"),
        ([{"matryoshka": True}], 0, "matryoshka", "no such option"),
        ([{"role": "embedding", "tool_calls": "hermes"}], 0, "tool_calls", "no such option"),
        ([{"role": "embedding", "engine": "gpu"}], 0, "engine", "runs on the CPU"),
        ([{"name": f"m{n}"} for n in range(17)], 16, "directory", "16 models at most"),
    ],
)
def test_what_tables_say_together_is_checked(
    models: list[dict[str, Any]], table: int, key: str, said: str
) -> None:
    """Names and aliases are one another's, shares fit, and options suit the role."""
    with pytest.raises(pydantic.ValidationError) as caught:
        Settings(models=[{"directory": "demo"} | each for each in models])
    [error] = caught.value.errors()
    assert (error["ctx"]["table"], error["ctx"]["key"]) == (table, key)
    assert said in error["msg"]


@pytest.mark.parametrize("name", ["model", "embedding_model", "model_name", "num_blocks"])
def test_tables_and_the_short_form_exclude_each_other(name: str) -> None:
    """What is said of one model would be of nobody where there are tables."""
    with pytest.raises(pydantic.ValidationError, match=f"{name} is of a server without"):
        Settings(models=[{"directory": "demo"}], **{name: "7"})


def test_a_table_has_its_own_options_and_the_rest_of_all() -> None:
    """Only what stands in it is its own, spelled as the settings are."""
    table = ModelTable.model_validate(
        {"directory": "demo", "max_model_len": "4k", "dtype": "auto", "max_num_seqs": 4}
    )
    assert table.own_options == {"max_model_len": 4000, "dtype": None, "max_num_seqs": 4}


def test_the_document_has_every_key_and_an_example_that_is_right() -> None:
    """Keys of their own in a table with their descriptions, those of all models by name."""
    text = _DOCUMENT.read_text()
    for name, field in ModelTable.model_fields.items():
        if name in ModelOptions.model_fields:
            assert f"`{name}`" in text
        else:
            assert re.search(
                rf"^\| `{name}` \| .* \| {re.escape(str(field.description))} \|$", text, re.M
            )
    [example] = re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    chat, vectors = Settings(**tomllib.loads(example)).models
    assert (chat.served_name, vectors.served_name) == ("qwen", "Qwen3-Embedding-0.6B")

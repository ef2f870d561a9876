"""What `sluice doctor` says of the context that a start would serve."""

from __future__ import annotations

import re

import pytest

from gateway.app.model_plan import planned_models
from gateway.doctor.model import check_context
from gateway.settings import Settings


@pytest.mark.parametrize(
    ("given", "level", "says"),
    [
        ({}, "ok", "the model's whole"),
        ({"num_blocks": 4}, "ok", "256 of .* holds 256 tokens; .* need num_blocks"),
        ({"max_model_len": 100}, "ok", "100 of .* tokens: max_model_len is set to 100"),
        ({"num_blocks": 4, "max_model_len": 257}, "broken", "257 needs [0-9,]+ bytes"),
        ({"max_model_len": 1 << 20}, "broken", "beyond the .* positions of this model"),
    ],
)
def test_the_context_is_told_before_a_start(given: dict[str, int], level: str, says: str) -> None:
    """Whole, cut by the KV cache, set, or refused: as the start itself would decide."""
    settings = Settings.model_validate({"engine": "cpu", **given})
    [finding] = check_context(*planned_models(settings))
    assert finding.level == level
    assert re.search(says, finding.found), finding.found

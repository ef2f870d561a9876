"""Whether bfloat16 is the faster one here."""

from __future__ import annotations

import pytest
import torch

from engine.probe import bfloat16_wins


def test_bfloat16_is_refused_where_the_cpu_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without support for it there is no race to win."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert not bfloat16_wins()

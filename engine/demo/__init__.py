"""The built-in demo model: what it knows, how it is trained, and the committed result.

Loads no torch: `MODEL_DIR` is all that a server needs.
"""

from __future__ import annotations

from pathlib import Path

MODEL_DIR: Path = Path(__file__).parent / "model"

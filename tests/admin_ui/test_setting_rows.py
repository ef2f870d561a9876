"""What the page of settings says of them."""

from __future__ import annotations

from admin_ui.setting_rows import setting_rows
from gateway.settings import Settings


def test_helps_have_no_marks_of_markdown() -> None:
    """Descriptions are written for the README; a link in one is the name of its document."""
    settings = Settings()
    rows = setting_rows(settings, dict.fromkeys(type(settings).model_fields, None), {})
    helps = {row.name: row.help for row in rows}
    assert not [name for name, text in helps.items() if "`" in text or "](" in text]
    assert "docs/models.md" in helps["models"]

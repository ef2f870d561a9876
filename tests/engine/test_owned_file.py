"""Whose file it is, where others may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.owned_file import why_not_owned


def test_links_are_judged_by_where_they_lead(tmp_path: Path) -> None:
    """A link of our own to a file that anybody writes is anybody's."""
    tmp_path.chmod(0o755)
    (tmp_path / "target").write_text("x")
    (tmp_path / "target").chmod(0o646)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert "target" in str(why_not_owned(tmp_path / "link"))
    (tmp_path / "target").chmod(0o644)
    assert why_not_owned(tmp_path / "link") is None


def test_a_group_of_ours_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are often writable by one's own group; another's group is others."""
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o664)
    assert why_not_owned(path) is None
    monkeypatch.setattr("os.getegid", lambda: os.stat(path).st_gid + 1)
    expected = None if os.stat(path).st_gid == 0 else "can be written by others"
    assert (why_not_owned(path) or "").endswith(expected or "")


def test_a_file_of_another_user_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What belongs to somebody else is refused, whatever its mode; what is root's is not."""
    path = tmp_path / "file"
    path.write_text("x")
    owner = os.stat(path).st_uid
    if owner == 0:
        assert why_not_owned(path) is None
        # Only root gives files away.
        owner = 12345
        os.chown(path, owner, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    assert f"belongs to user {owner}" in str(why_not_owned(path))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Nothing is said of what does not exist."""
    with pytest.raises(FileNotFoundError):
        why_not_owned(tmp_path / "none")

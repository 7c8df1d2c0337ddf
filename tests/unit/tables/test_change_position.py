"""Text form of readers' change positions."""

from __future__ import annotations

import pytest

from deltaworks.errors import ConfigError
from deltaworks.tables.changes import ChangePosition


def test_a_position_is_read_back_from_its_text() -> None:
    for through in ("notifications", "change_feed"):
        position = ChangePosition(source=through, table_id="a:b", version=41)  # type: ignore[arg-type]

        assert ChangePosition.parse(str(position)) == position


@pytest.mark.parametrize("text", ["", "41", "2:notifications:1:id", "1:feed:1:id", "1:notifications::id"])
def test_an_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="CHANGES_POSITION_UNKNOWN"):
        ChangePosition.parse(text)

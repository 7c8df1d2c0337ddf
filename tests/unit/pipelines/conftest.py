"""Where the real samples are that the shipped pipelines are read with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared_data import SHARED_DATA


def folder(name: str) -> Path:
    """A folder of samples, which are not part of the checkout."""
    path = SHARED_DATA / name
    if not path.is_dir():
        pytest.skip(f"no samples at {path}; name their folder in DELTAWORKS_SHARED_DATA")
    return path


@pytest.fixture(scope="session")
def shared_logs() -> Path:
    """CloudFront's logs."""
    return folder("cloudfront_logs")


@pytest.fixture(scope="session")
def shared_prices() -> Path:
    """Daily prices."""
    return folder("stock_prices")


@pytest.fixture(scope="session")
def shared_facts() -> Path:
    """Earnings per share, and lists with them."""
    return folder("fundamentals")


@pytest.fixture(scope="session")
def shared_players() -> Path:
    """Events of media players."""
    return folder("media_player_events")

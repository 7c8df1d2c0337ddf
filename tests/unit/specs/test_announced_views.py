"""Views can only be announced on SNS channels of the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog

CHANNELS = """\
alerts:
  channels:
    - {kind: sns, name: widgets, topic: "arn:aws:sns:eu-west-1:1:widgets", min_severity: critical}
    - {kind: log, name: lines}
"""


def announced(pipeline: str, channel: str, more: str = "") -> str:
    view = f"{{name: now, sql: now.sql, reads: [orders], announce: {{channel: {channel}{more}}}}}"
    return f"{pipeline}views:\n  - {view}\n"


@pytest.fixture
def project(
    make_project: Callable[..., Path], pipeline_text: str, environment_text: str
) -> Callable[[str, str, str], Path]:
    def make(channel: str, more: str = "", channels: str = CHANNELS) -> Path:
        root = make_project(pipeline=announced(pipeline_text, channel, more), environment=environment_text + channels)
        (folder,) = {path.parent for path in root.glob("include/pipelines/*/pipeline.yaml")}
        (folder / "now.sql").write_text("SELECT count(*) AS orders FROM orders\n")
        return root

    return make


def test_a_view_names_its_topic(project: Callable[..., Path]) -> None:
    (pipeline,) = load_catalog("local", root=project("widgets")).pipelines.values()
    (view,) = pipeline.views

    assert view.announce is not None
    assert (view.announce.channel, view.announce.every_seconds) == ("widgets", 5)


@pytest.mark.parametrize(
    ("channel", "more", "message"),
    [
        ("widget", "", "views.0.announce.channel: there is no channel 'widget' of kind sns below alerts.channels"),
        ("widget", "", "did you mean 'widgets'?"),
        ("lines", "", "views.0.announce.channel: the channel 'lines' has kind log"),
        ("widgets", ", every_seconds: 0", "views.0.announce.every_seconds: write 1 or more instead of 0"),
    ],
)
def test_an_error_has_file_line_and_key(project: Callable[..., Path], channel: str, more: str, message: str) -> None:
    root = project(channel, more)
    with pytest.raises(ConfigError) as rejection:
        load_catalog("local", root=root)
    assert "pipeline.yaml:" in rejection.value.message
    assert message in rejection.value.message

    assert any(
        message in f"{spec_error.key}: {spec_error.text}" for spec_error in check_project("local", root=root).errors
    )

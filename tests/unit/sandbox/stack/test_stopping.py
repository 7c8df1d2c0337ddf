"""`deltaworks down` asks every stream to stop, those whose declarations are wrong by now among them."""

from __future__ import annotations

from pathlib import Path

from sandbox.stack.home import StackHome
from sandbox.stack.stopping import StopFlags
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE, RELAY


def test_streams_whose_declarations_are_wrong_are_asked_to_stop_too(tmp_path: Path) -> None:
    files = {
        "environments/local.yaml": ENVIRONMENT.replace("file:///lake", f"file://{tmp_path}/lake"),
        "relays/landing.yaml": RELAY,
        "relays/second.yaml": "relay: second\n",
        "pipelines/shop/pipeline.yaml": PIPELINE,
        "pipelines/store/pipeline.yaml": "pipeline: store\n",
    }
    for name, text in files.items():
        (tmp_path / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / name).write_text(text)
    home = StackHome.at(tmp_path / "home", project=tmp_path)
    home.create()
    home.env_file.write_text("DELTAWORKS_ENVIRONMENT=local\n")

    flags = StopFlags.of(home)

    assert sorted(flags.relays) == ["landing", "second"]
    assert sorted(flags.pipelines) == ["shop", "store"]
    assert sorted(flags.processes) == ["feeds__shop", "rules__judging"]

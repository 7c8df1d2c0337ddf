"""docker/make_secrets.py, loaded by its path: a package of the same name as its folder is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

from deltaworks.testing import present

_PATH = Path(__file__).resolve().parents[3] / "docker" / "make_secrets.py"
_spec = present(importlib.util.spec_from_file_location("make_secrets", _PATH))
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)

FILES: dict[str, dict[str, Callable[[Mapping[str, str]], str]]] = _module.FILES
make_secrets: Callable[[Path], list[str]] = _module.make_secrets
prompt_for_webhook: Callable[..., str] = _module.prompt_for_webhook
WEBHOOK_FILE: str = _module.WEBHOOK_FILE
main: Callable[[list[str]], int] = _module.main

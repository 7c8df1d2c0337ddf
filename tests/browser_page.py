"""A Chromium and a site with one page, for browser clients of the collector."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.http_server import HttpAnswer, HttpRequest, http_server

CHROMIUM = shutil.which("chromium")
_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


class PageSite:
    """A page at `/` with further files; `page` and `files` may be set while it serves."""

    def __init__(self) -> None:
        self.page = ""
        self.files: dict[str, bytes] = {}
        self.origin = ""

    def content(self, path: str) -> tuple[str, bytes] | None:
        """Returns type and bytes of a path."""
        if path == "/":
            return "text/html", f"<!doctype html><title>a page</title>{self.page}".encode()
        file = self.files.get(path)
        return None if file is None else ("text/javascript", file)


@contextmanager
def serve_site() -> Iterator[PageSite]:
    """Serves a site on a free port."""
    site = PageSite()

    def answer(request: HttpRequest) -> HttpAnswer:
        content = site.content(request.path)
        kind, body = content or ("text/plain", b"")
        return 404 if content is None else 200, body, {"Content-Type": kind}

    with http_server(answer) as site.origin:
        yield site


@contextmanager
def launch_chromium() -> Iterator[Any]:
    """Launches Chromium; skips the test without one."""
    if CHROMIUM is None:
        pytest.skip("no `chromium` on the PATH, the browser that runs the page")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()

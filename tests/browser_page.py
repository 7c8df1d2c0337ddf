"""A Chromium and a site with one page, for browser clients of the collector."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = site.content(self.path)
            kind, body = content or ("text/plain", b"")
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    site.origin = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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

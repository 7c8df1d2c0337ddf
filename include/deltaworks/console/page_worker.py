"""The process that renders pages for a host, with lower CPU priority. It ends with the host.

Each number on its command line is the file descriptor of a socket to the host. One thread serves each socket.
"""

from __future__ import annotations

import gzip
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

from deltaworks.console.cached_objects import CLIENT_TIMEOUTS, CachedObjects
from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.page_builder import PageBuilder
from deltaworks.console.page_context import PageError
from deltaworks.console.page_process import PageCall, RenderedPage
from deltaworks.console.pages.registry import PAGES
from deltaworks.control.objects import ObjectStore, open_objects

#: The host has priority, since it also serves heartbeats of tasks.
_NICENESS: Final = 5
_MIN_GZIP_BYTES = 1_000
_GZIP_LEVEL = 4
_PAGES = {page.name: page for page in PAGES}


def serve(connection: Connection, builder: PageBuilder) -> None:
    """Renders pages until the host has ended."""
    with suppress(EOFError, OSError):
        while True:
            call = PageCall.decode(connection.recv_bytes())
            try:
                rendered = _render(call, builder)
            except PageError as error:
                rendered = RenderedPage(status=error.status, error=str(error))
            except Exception:  # the host logs the error and responds as for an error in its own process
                rendered = RenderedPage(failed=traceback.format_exc())
            connection.send_bytes(rendered.encode())


def _render(call: PageCall, builder: PageBuilder) -> RenderedPage:
    answer = builder.render(_PAGES[call.page], call.request, call.person, call.host_state)
    body, headers = bytes(answer.body), dict(answer.headers)
    if call.request.accepts_gzip and len(body) >= _MIN_GZIP_BYTES:
        # Compressed here, so that the host does not compress it on its event loop.
        body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "Accept-Encoding"}
    headers.pop("content-length", None)
    return RenderedPage(status=answer.status_code, headers=headers, body=body)


def main(descriptors: Sequence[str]) -> None:
    """Serves the sockets until the host has closed all of them."""
    os.nice(_NICENESS)
    catalog = CatalogCache()

    def open_lake() -> ObjectStore:
        return open_objects(catalog.current().environment.lake, timeouts=CLIENT_TIMEOUTS)

    builder = PageBuilder(records=CachedObjects(open_lake), catalog=catalog)
    threads = [
        threading.Thread(target=serve, args=(Connection(int(number)), builder), name=f"console-pages-{number}")
        for number in descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])

"""The process that makes pages for a host: it gives way to the host, and ends with it.

Each number on its command line is a socket of the host's, served by a thread of its own.
"""

from __future__ import annotations

import gzip
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

from deltaworks.console.cached_objects import PATIENCE, CachedObjects
from deltaworks.console.catalog_cache import CatalogCache
from deltaworks.console.look import PageMissingError
from deltaworks.console.page_calls import MadePage, PageCall, answering, ended_quietly
from deltaworks.console.page_maker import PageMaker
from deltaworks.console.pages.registry import PAGES
from deltaworks.control.objects import ObjectStore, open_objects

#: Whoever takes heartbeats of tasks comes first.
_NICENESS: Final = 5
_SMALLEST_PACKED = 1_000
_PACKED_LEVEL = 4
_PAGES = {page.name: page for page in PAGES}


def serve(connection: Connection, maker: PageMaker) -> None:
    """Make pages until the host is gone."""
    with ended_quietly():
        while True:
            call = PageCall.decode(connection.recv_bytes())
            try:
                made = _made(connection, call, maker)
            except PageMissingError as error:
                made = MadePage(missing=str(error))
            except (EOFError, OSError):
                raise
            except Exception:  # the host has it logged, and answers as it does where it makes a page itself
                made = MadePage(failed=traceback.format_exc())
            made.send(connection)


def _made(connection: Connection, call: PageCall, maker: PageMaker) -> MadePage:
    answer = maker.make(_PAGES[call.page], call.request, answering(connection, call), call.around)
    body, headers = bytes(answer.body), dict(answer.headers)
    if call.request.packs and len(body) >= _SMALLEST_PACKED:
        # Here, so that the host's own packing, on its event loop, leaves it alone.
        body = gzip.compress(body, _PACKED_LEVEL, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "Accept-Encoding"}
    headers.pop("content-length", None)
    return MadePage(status=answer.status_code, headers=headers, body=body)


def main(descriptors: Sequence[str]) -> None:
    """Serve the sockets until the host has closed all of them."""
    os.nice(_NICENESS)
    catalog = CatalogCache()

    def opened() -> ObjectStore:
        return open_objects(catalog.current().environment.lake, timeouts=PATIENCE)

    maker = PageMaker(records=CachedObjects(opened), catalog=catalog)
    threads = [
        threading.Thread(target=serve, args=(Connection(int(number)), maker), name=f"console-pages-{number}")
        for number in descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])

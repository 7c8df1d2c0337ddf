"""A client of the console that reloads a page whose data are still being read, as browsers and programs do."""

from __future__ import annotations

import time
from typing import Any

from fastapi.testclient import TestClient

from tests.waiting import PATIENCE_SECONDS


class ConsoleClient(TestClient):
    """Repeats a request while the answer says that the page follows in a moment."""

    def request(self, *arguments: Any, **options: Any) -> Any:
        """Returns the first answer that is not of a page that is being read."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            response = super().request(*arguments, **options)
            if not {"refresh", "retry-after"} & response.headers.keys() or time.monotonic() > end:
                return response
            time.sleep(0.2)

"""A client of the console that reloads a page whose data are still being read, as browsers and programs do."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from tests.waiting import await_page


class ConsoleClient(TestClient):
    """Repeats a request while the answer says that the page follows in a moment."""

    def request(self, *arguments: Any, **options: Any) -> Any:
        """Returns the first answer that is not of a page that is being read."""
        request = super().request
        return await_page(lambda: request(*arguments, **options))

"""The Airflow plugin of Deltaworks: links on tasks and pages. It registers; the library does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from deltaworks.airflow.links import LINKS, server_path
from deltaworks.airflow.timetables import GoldTimetable

Message = MutableMapping[str, Any]


class ProgressApplication:
    """The progress page, built at its first request: every component loads this file, one serves it."""

    def __init__(self) -> None:
        self._application: Any = None

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if self._application is None:
            from deltaworks.airflow.progress_page import build_app

            self._application = build_app()
        await self._application(scope, receive, send)


class DeltaworksPlugin(AirflowPlugin):
    """What Deltaworks adds to Airflow's pages."""

    name = "deltaworks"
    operator_extra_links: ClassVar[list[Any]] = list(LINKS)
    timetables: ClassVar[list[Any]] = [GoldTimetable]
    fastapi_apps: ClassVar[list[Any]] = [
        {"app": ProgressApplication(), "url_prefix": "/deltaworks", "name": "Deltaworks progress"}
    ]
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Deltaworks streams",
            "href": server_path("/deltaworks/progress"),
            "destination": "nav",
            "category": "browse",
            "url_route": "deltaworks",
        },
        {
            "name": "Deltaworks dashboards",
            "href": server_path("/deltaworks/dashboards"),
            "destination": "nav",
            "category": "browse",
            "url_route": "deltaworks_dashboards",
        },
        {
            "name": "Deltaworks erasures",
            "href": server_path("/deltaworks/erasures"),
            "destination": "nav",
            "category": "browse",
            "url_route": "deltaworks_erasures",
        },
    ]

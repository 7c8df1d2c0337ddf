"""Registers Deltaworks in Airflow: task links, the console, timetables and menu entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

from deltaworks.airflow.executor import middlewares_for_database
from deltaworks.airflow.links import LINKS
from deltaworks.airflow.names import server_path
from deltaworks.airflow.scheduled_dags import GoldTimetable

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class ConsoleApplication:
    """The console's ASGI application. It is built at the first request, since only one Airflow component serves
    pages."""

    def __init__(self) -> None:
        self._application: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._application is None:
            from deltaworks.airflow.console_host import build_host

            self._application = build_host()
        await self._application(scope, receive, send)


class DeltaworksPlugin(AirflowPlugin):
    """Adds links, pages and timetables to Airflow."""

    name = "deltaworks"
    operator_extra_links: ClassVar[list[Any]] = list(LINKS)
    timetables: ClassVar[list[Any]] = [GoldTimetable]
    fastapi_apps: ClassVar[list[Any]] = [
        {"app": ConsoleApplication(), "url_prefix": "/deltaworks", "name": "Deltaworks"}
    ]
    fastapi_root_middlewares: ClassVar[list[Any]] = middlewares_for_database(conf.get("database", "sql_alchemy_conn"))
    external_views: ClassVar[list[Any]] = [
        {
            "name": "Deltaworks",
            "href": server_path("/deltaworks/"),
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "deltaworks",
        },
        # A link without a route opens in a new tab.
        {
            "name": "Deltaworks (new tab)",
            "href": server_path("/deltaworks/"),
            "destination": "nav",
            "category": "browse",
        },
        {
            "name": "Deltaworks",
            "href": server_path("/deltaworks/dag/{DAG_ID}"),
            "destination": "dag",
            "url_route": "deltaworks_dag",
        },
        {
            "name": "Deltaworks dashboards",
            "href": server_path("/deltaworks/dashboards"),
            "destination": "nav",
            "category": "browse",
            "url_route": "deltaworks_dashboards",
        },
    ]

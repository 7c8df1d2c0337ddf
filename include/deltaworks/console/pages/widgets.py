"""The pages of widgets: their list, and one that shows a widget's rows as its stream of events sends them."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.console.pages.base import Page
from deltaworks.specs.gold import ViewSpec, WidgetSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetView:
    """A declared widget. The rows are not part of the page: its script reads them from `events`."""

    pipeline: str
    name: str
    title: str
    description: str
    max_rows: int
    every_seconds: float
    path: str
    events: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WidgetsView:
    """The declared widgets of the pipelines that the person may see."""

    widgets: tuple[WidgetView, ...]


def declared_widget(context: PageContext, pipeline: str, name: str) -> WidgetView:
    """Returns a declared widget.

    Raises:
        PageMissingError: it is not declared.
    """
    spec = context.catalog.pipelines.get(pipeline)
    for view in spec.views if spec is not None else ():
        if view.name == name and view.widget is not None:
            return _widget_view(pipeline, view, view.widget)
    raise PageMissingError(f"Pipeline {pipeline!r} declares no widget {name!r}.")


def _widget_view(pipeline: str, view: ViewSpec, widget: WidgetSpec) -> WidgetView:
    path = f"/widgets/{pipeline}/{view.name}"
    return WidgetView(
        pipeline=pipeline,
        name=view.name,
        title=widget.title or view.name.replace("_", " ").capitalize(),
        description=view.description,
        max_rows=widget.max_rows,
        every_seconds=widget.every_seconds,
        path=path,
        events=f"{path}/events",
    )


def view_all(context: PageContext) -> WidgetsView:
    """Returns the list of widgets."""
    return WidgetsView(
        widgets=tuple(
            _widget_view(name, view, view.widget)
            for name in context.pipelines()
            if name in context.catalog.pipelines
            for view in context.catalog.pipelines[name].views
            if view.widget is not None
        )
    )


def view(context: PageContext) -> WidgetView:
    """Returns the widget in the address.

    Raises:
        PageMissingError: it is not declared, or the person may not see its pipeline.
    """
    return declared_widget(context, context.pipeline, context.values["view"])


PAGES = (
    Page(name="widgets", route="/widgets", title="Widgets", view=view_all),
    Page(name="widget", route="/widgets/{pipeline}/{view}", title="{view} of {pipeline}", view=view),
)

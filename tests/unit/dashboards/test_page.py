"""The dashboard page: self-contained, safe for any data, with the age of the data on every panel."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import re
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest

from deltaworks.charts.drawing import MAX_MARKS, NO_MARKS, Mark, Marks, Span
from deltaworks.charts.plots import bin_values
from deltaworks.dashboards.answers import DashboardAnswer, PanelAnswer
from deltaworks.dashboards.page import dashboard_page
from deltaworks.specs.dashboards import DashboardSpec, PanelSpec
from deltaworks.tables.ages import TableAge

NOW = dt.datetime(2026, 3, 1, 14, 0, tzinfo=dt.UTC)
SPAN = Span(NOW - dt.timedelta(hours=4), NOW)
AGE = TableAge("errors_minute", NOW - dt.timedelta(minutes=3), NOW - dt.timedelta(seconds=50))
HOSTILE = "</script><script>alert(1)</script><b>'\"&amp;"


def panel(chart: str, **more: Any) -> PanelSpec:
    return PanelSpec.model_validate({"title": f"A {chart}", "chart": chart, "sql": "panels/p.sql"} | more)


def answer(spec: PanelSpec, columns: str, *rows: tuple[Any, ...], **more: Any) -> PanelAnswer:
    return PanelAnswer(panel=spec, columns=tuple(columns.split()), rows=rows, **{"ages": (AGE,)} | more)


def page(
    *panels: PanelAnswer,
    refresh_seconds: int | None = None,
    span: Span = SPAN,
    marks: Marks = NO_MARKS,
    **more: Any,
) -> str:
    spec = DashboardSpec.model_validate(
        {"name": "noc", "panels": [{"title": "t", "chart": "table", "sql": "t.sql"}]} | more
    )
    shown = DashboardAnswer(pipeline="shop", dashboard=spec, span=span, at=NOW, panels=panels, marks=marks)
    return dashboard_page(shown, refresh_seconds=refresh_seconds)


def served_page(*panels: PanelAnswer, refresh_seconds: int | None, script: str = "") -> str:
    spec = DashboardSpec.model_validate({"name": "noc", "panels": [item.panel.model_dump() for item in panels]})
    shown = DashboardAnswer(pipeline="shop", dashboard=spec, span=SPAN, at=NOW, panels=panels)
    return dashboard_page(shown, refresh_seconds=refresh_seconds, is_served=True, script=script)


def at(minutes: float) -> dt.datetime:
    return SPAN.since + dt.timedelta(minutes=minutes)


class Tags(HTMLParser):
    """Parses the tags of a page, and checks that SVG tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "html", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag != "html":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


LINE = answer(
    panel("line", x="minute", y="ms", by="cdn", unit="milliseconds"),
    "minute cdn ms",
    *((at(minute), cdn, 100.0 + minute) for minute in range(60) for cdn in "ab"),
)
AREA = answer(
    panel("area", x="minute", y=["a", "b"]), "minute a b", *((at(minute), minute, None) for minute in range(9))
)
COLUMNS = answer(
    panel("bar", x="day", y="n"), "day n", (NOW.date(), 4), (NOW.date() - dt.timedelta(days=1), Decimal("-1.5"))
)
ROWS = answer(
    panel("bar", x="country", y="n", by="kind"), "country kind n", ("DE", "x", 4), ("DE", "y", 2), (None, "x", 1)
)
NUMBER = answer(panel("number", y="n", unit="percent"), "n", (12.5,))
SPARK = answer(
    panel("number", x="day", y="n"), "day n", *((NOW.date() - dt.timedelta(days=day), day) for day in range(9))
)
VALUES = answer(panel("histogram", x="ms", unit="milliseconds"), "ms", *((value,) for value in (1, 2, 2, 700, None)))
BINS = answer(panel("histogram", x="bin", y="n"), "bin n", (100, 4), (101, 9), (103, 2))
TABLE = answer(panel("table", wide=True), "name n", ("one", 1), ("two", None))
ALL = (LINE, AREA, COLUMNS, ROWS, NUMBER, SPARK, VALUES, BINS, TABLE)


def test_every_chart_is_drawn_and_says_how_old_its_data_are() -> None:
    text = page(*ALL)

    assert "failed" not in Tags(text).text
    assert text.count("<section") == text.count("data to 2026-03-01 13:57, 3 min old, written 50 s ago") == len(ALL)
    # All charts except the table and the single number.
    assert text.count("<svg") == len(ALL) - 2
    assert "errors_minute: data to 2026-03-01 13:57, written 2026-03-01 13:59:10 UTC" in text
    assert Tags(text).open == []


def test_the_page_is_self_contained_and_has_two_themes() -> None:
    text = page(*ALL, refresh_seconds=30)
    tags = Tags(text).tags

    assert {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "use", "image"} == set()
    assert not any(name in ("src", "href", "srcset") or name.startswith("on") for _, names in tags for name in names)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    assert '<meta http-equiv="refresh" content="30">' in text
    assert "refresh" not in page(*ALL)


def test_a_served_page_is_renewed_in_place_and_reloads_without_scripts() -> None:
    text = served_page(LINE, refresh_seconds=15, script="../../assets/1/htmx.min.js")

    assert '<noscript><meta http-equiv="refresh" content="15"></noscript>' in text
    assert text.count('http-equiv="refresh"') == 1
    (renewed,) = [names for tag, names in Tags(text).tags if tag == "div" and names.get("id") == "renewed"]
    assert (renewed["hx-trigger"], renewed["hx-select"], renewed["hx-swap"]) == ("every 15s", "#renewed", "outerHTML")
    assert "hx-get" not in served_page(LINE, refresh_seconds=None, script="../../assets/1/htmx.min.js")


def test_filters_and_segments_are_in_the_pages_address() -> None:
    declared = {
        "name": "noc",
        "filters": ["isp", "device"],
        "choices": "choices.sql",
        "segments": [{"name": "TVs of <A&B>", "filters": {"isp": "A&B <x>", "device": "tv"}}],
        "panels": [LINE.panel.model_dump()],
    }
    shown = DashboardAnswer(
        pipeline="shop",
        dashboard=DashboardSpec.model_validate(declared),
        span=SPAN,
        at=NOW,
        panels=(LINE,),
        filters={"isp": HOSTILE},
        choices={"isp": ("A", "B"), "device": ("tv",)},
    )

    tags = Tags(dashboard_page(shown, refresh_seconds=15, is_served=True)).tags

    assert [names["name"] for tag, names in tags if tag in ("select", "input")] == ["isp", "device", "from", "to"]
    options = [tag for tag, _ in tags if tag == "option"]
    assert len(options) == 4 + 2, "all, the page's own value and two others; all and tv"
    assert [names.get("value") for tag, names in tags if tag == "input"] == ["", ""], "a current page stays current"
    assert any(names.get("href") == "?isp=A%26B+%3Cx%3E&device=tv" for tag, names in tags if tag == "a")
    assert "script" not in {tag for tag, _ in tags}


def test_a_band_is_drawn_behind_each_line_that_has_one() -> None:
    spec = panel("line", x="minute", y="n", by="isp", band=["low", "high"])
    rows = [(at(minute), isp, 5.0, low, 6.0) for minute in range(6) for isp, low in (("a", 4.0), ("b", None))]
    gap = [(at(minute), "a", 5.0, None if minute == 8 else 4.0, 6.0) for minute in range(6, 12)]

    text = page(answer(spec, "minute isp n low high", *rows, *gap))

    assert text.count('class="band s0"') == 2, "a missing edge ends a band"
    assert 'class="band s1"' not in text
    assert text.index('class="band') < text.index('class="line')


def test_data_are_escaped() -> None:
    panels = [
        dataclasses.replace(
            item, rows=tuple(tuple(HOSTILE if isinstance(value, str) else value for value in row) for row in item.rows)
        )
        for item in (ROWS, TABLE)
    ]
    panels.append(answer(panel("table", title=HOSTILE, description=HOSTILE), "a", (HOSTILE,), problem=HOSTILE))
    panels.append(dataclasses.replace(TABLE, ages=(TableAge(HOSTILE, None, None),), missing_tables=(HOSTILE,)))

    shown = Tags(page(*panels, title=HOSTILE, description=HOSTILE))

    assert {tag for tag, _ in shown.tags} & {"script", "b"} == set()
    assert not any(name.startswith("on") for _, names in shown.tags for name in names)
    assert "".join(shown.text).count("alert(1)") > len(panels)


def test_a_failed_panel_is_shown_with_the_others() -> None:
    text = page(answer(panel("table"), "", problem="Binder Error: no <such> column"), NUMBER)

    assert "This panel failed.</strong> Binder Error: no &lt;such&gt; column" in text
    assert "12.5 %" in text
    assert '<dt>panels that failed</dt><dd class="failed">1</dd>' in text


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (answer(panel("line", x="x", y="y"), "x y", (at(1), "much")), "&#x27;much&#x27; is not a number"),
        (answer(panel("line", x="x", y="y"), "x y", (at(1), 1), (None, 2)), "x is null in some rows"),
        (answer(panel("number", y="n"), "n", (1,), (2,)), "returns 2 rows instead of one"),
        (answer(panel("histogram", x="x"), "x", (None,)), "has no values"),
    ],
)
def test_a_result_that_does_not_fit_the_chart_fails_the_panel(shown: PanelAnswer, said: str) -> None:
    text = page(shown, NUMBER)

    assert said in text
    assert "This panel failed" in text
    assert "12.5 %" in text


def test_missing_rows_and_tables_are_no_failures() -> None:
    missing = {"missing_tables": ("orders",), "next_step": "Start the stream."}
    text = page(answer(panel("table"), "a"), answer(panel("table"), "", ages=(), **missing))

    assert "No rows in this time range." in text
    assert "No data: table orders does not exist yet. Start the stream" in text
    assert "failed" not in Tags(text).text


def test_missing_minutes_are_a_gap_and_not_a_line() -> None:
    spec = panel("line", x="minute", y="n")
    whole = answer(spec, "minute n", *((at(minute), 1) for minute in range(60)))
    gap = answer(spec, "minute n", *((at(minute), 1) for minute in range(60) if not 20 <= minute < 40))
    null = answer(spec, "minute n", *((at(minute), None if minute == 30 else 1) for minute in range(60)))

    assert [page(item).count('class="line s0"') for item in (whole, gap, null)] == [1, 2, 2]


def test_the_axis_covers_the_requested_span() -> None:
    early = answer(panel("line", x="minute", y="n"), "minute n", *((at(minute), 1) for minute in range(60)))

    (path,) = re.findall(r'class="line s0" d="M([^"]*)"', page(early))

    # An hour of four: a quarter of the axis, which is 52 to 608 pixels.
    assert float(path.split("L")[0].split()[0]) == 52
    assert float(path.split("L")[-1].split()[0]) == pytest.approx(52 + 556 * 59 / 240, abs=0.1)


def test_areas_stack_so_that_the_upper_edge_is_the_sum() -> None:
    stacked = answer(
        panel("area", x="minute", y="n", by="kind"), "minute kind n",
        *((at(minute), kind, count) for minute in range(3) for kind, count in (("a", 6), ("b", 4))),
    )  # fmt: skip

    edges = re.findall(r'class="line s(\d)" d="M[\d.]+ ([\d.]+)', page(stacked))

    # The axis reaches 10 at 14 pixels and 0 at 206.
    assert edges == [("0", str(round(206 - 192 * 0.6, 1))), ("1", "14.0")]


def test_series_beyond_the_limit_are_summed_or_counted() -> None:
    rows = [(at(minute), f"isp {number}", 100 - number) for minute in range(3) for number in range(12)]
    drawn = {
        chart: page(answer(panel(chart, x="minute", y="n", by="isp"), "minute isp n", *rows))
        for chart in ("area", "line")
    }

    assert "other: 5 more" in drawn["area"]
    # Of 93 to 89, in each strip: nothing is lost of the sum.
    assert f"other  {93 + 92 + 91 + 90 + 89}" in drawn["area"]
    assert "4 smaller series not shown" in drawn["line"]
    assert "isp 8" not in drawn["line"]


def test_a_page_of_very_many_points_stays_small() -> None:
    rows = tuple((at(second / 60), f"c{number}", number) for second in range(600) for number in range(8))
    many = answer(panel("line", x="minute", y="n", by="c"), "minute c n", *rows)

    assert len(page(many)) < 300_000
    assert page(many).count('class="hit"') <= 120


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], ({3.0: 1.0}, 1.0)),
        ([0.0, 0.0, 29.0], ({float(bin_): {0: 2.0, 29: 1.0}.get(bin_, 0.0) for bin_ in range(30)}, 1.0)),
    ],
)
def test_bins_hold_every_value_once(values: list[float], expected: tuple[dict[float, float], float]) -> None:
    assert bin_values(values) == expected


MARKS = Marks.overlapping(
    [
        Mark(kind="note", at=at(60), text="price change"),
        Mark(kind="rule", at=at(100), until=at(130), text="errors fired: isp a"),
        Mark(kind="rule", at=at(220), text="latency fired"),
        Mark(kind="note", at=at(-1), text="before it"),
        Mark(kind="rule", at=at(-90), until=at(-60), text="over before it"),
    ],
    SPAN,
)


def test_marks_are_drawn_and_listed_by_number() -> None:
    tags = Tags(page(answer(panel("line", x="minute", y="n"), "minute n", (at(0), 1), (at(239), 2)), marks=MARKS))

    (line,) = [found for tag, found in tags.tags if tag == "line" and found.get("class") == "note"]
    bands = [found for tag, found in tags.tags if found.get("class") == "fired"]
    left, right = 52.0, 620.0 - 12
    across = [left + (right - left) * minutes / 240 for minutes in (60, 100, 130, 220, 240)]
    assert float(line["x1"] or 0) == pytest.approx(across[0], abs=0.1)
    edges = [(float(band["x"] or 0), float(band["x"] or 0) + float(band["width"] or 0)) for band in bands]
    assert edges == [pytest.approx((across[1], across[2]), abs=0.2), pytest.approx((across[3], across[4]), abs=0.2)]
    said = "".join(tags.text)
    assert "2026-03-01 11:00 price change" in said
    assert "2026-03-01 11:40 to 2026-03-01 12:10 errors fired: isp a" in said
    assert "2026-03-01 13:40 to now latency fired" in said
    assert "before it" not in said


def test_charts_without_a_time_axis_have_no_marks() -> None:
    rows = answer(panel("bar", x="name", y="n"), "name n", ("a", 1))
    assert 'class="fired"' not in page(rows, marks=MARKS)
    assert "Annotations and firing rules" not in page(rows)
    assert "Annotations and rules could not be read. ConnectionError" in page(
        rows, marks=Marks(problem="ConnectionError: no")
    )


def test_the_newest_marks_are_drawn_without_overlap() -> None:
    marks = Marks.overlapping(
        [Mark(kind="note", at=at(minute), text=f"n{minute} {HOSTILE}") for minute in range(200)], SPAN
    )
    shown = page(answer(panel("line", x="minute", y="n"), "minute n", (at(0), 1), (at(239), 2)), marks=marks)

    assert (len(marks.items), marks.earlier_count) == (MAX_MARKS, 200 - MAX_MARKS)
    assert shown.count('<line class="note"') == MAX_MARKS
    places = [float(place) for place in re.findall(r'class="flag note">.*?<rect x="([\d.]+)"', shown)]
    assert 1 < len(places) < MAX_MARKS
    assert all(after - before >= 16 for before, after in itertools.pairwise(places))
    assert "and 170 earlier" in shown
    assert "<script>" not in shown


def test_a_served_page_has_a_form_for_its_span_and_a_link_to_older_data() -> None:
    old = TableAge("errors_minute", SPAN.since - dt.timedelta(days=900), SPAN.until)
    spec = DashboardSpec.model_validate({"name": "noc", "panels": [{"title": "t", "chart": "table", "sql": "t.sql"}]})

    def served(age: TableAge) -> str:
        panels = (answer(panel("table"), "a", ages=(age,)),)
        shown = DashboardAnswer(pipeline="shop", dashboard=spec, span=SPAN, at=NOW, panels=panels, marks=NO_MARKS)
        return dashboard_page(shown, is_served=True)

    outside, inside = served(old), served(AGE)

    assert '<a href="?from=2023-09-13T06:00&amp;to=2023-09-13T10:01">show the newest data</a>' in outside
    assert "show the newest data" not in inside
    assert '<input type="datetime-local" name="from" value="2026-03-01T10:00">' in inside
    assert "<form" not in page(answer(panel("table"), "a"))

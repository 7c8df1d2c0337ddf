"""Charts of reports: titles of axes, points, logarithmic axes and grouped bars."""

from __future__ import annotations

import datetime as dt
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.charts.drawing import ChartOptions
from deltaworks.charts.page import html_table, section, with_legend, write_page
from deltaworks.charts.plots import line_chart, row_chart
from deltaworks.charts.scales import Scale, build_series, log_steps, named_series

START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
OPTIONS = ChartOptions(title="Files <b>", x_title="time, UTC", y_title="files", wide=True)
LINES = named_series(
    {
        "games.a": [(START + dt.timedelta(days=day), None if day == 2 else day + 1) for day in range(6)],
        "games.<b>": [(START + dt.timedelta(days=day, minutes=3), 10_000) for day in (0, 1, 5)],
    }
)
BARS = build_series(["read", "insert"], {"old": [2.0, 1.0], "new": [0.5, 4.0]}, additive=False)


def test_a_line_chart_tells_its_axes_and_the_value_of_each_point() -> None:
    drawn = line_chart(OPTIONS, LINES, LINES.span, from_zero=True, points=True, split_at_gaps=False)

    assert 'aria-label="Files &lt;b&gt;"' in drawn
    assert re.findall(r'<text class="axis"[^>]*>([^<]*)', drawn) == ["time, UTC", "files"]
    points = re.findall(r"<title>([^<]*)", drawn)
    assert len(points) == 5 + 3, "a missing value has no point"
    assert points[0] == "2026-03-01 00:00: games.a  1"
    assert points[-1] == "2026-03-06 00:03: games.&lt;b&gt;  10,000"
    # A missing value breaks the line, a longer distance does not.
    assert drawn.count('class="line s0"') == 2
    assert drawn.count('class="line s1"') == 1
    assert "games.&lt;b&gt;" in with_legend(drawn, LINES)


def test_series_keep_their_order_and_their_name_if_there_is_one() -> None:
    assert [item.name for item in LINES.series] == ["games.a", "games.<b>"]
    assert named_series({"alone": [(1, 2)]}).is_named


@given(st.floats(1e-6, 1e12), st.floats(1, 1e9))
def test_steps_of_a_logarithmic_axis_cover_the_values(low: float, factor: float) -> None:
    high = low * factor
    steps = log_steps(low, high)

    assert len(steps) >= 2
    assert steps[0] <= low * (1 + 1e-9)
    assert steps[-1] >= high * (1 - 1e-9)
    assert steps == sorted(steps)
    assert all(round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5) for step in steps)


def test_a_logarithmic_scale_gives_each_decade_the_same_space() -> None:
    scale = Scale(1, 1_000, 300, 0, is_log=True)

    assert [scale(value) for value in (0.1, 1, 10, 100, 1_000)] == [300, 300, 200, 100, 0]


def test_values_that_are_not_above_zero_are_missing_on_a_logarithmic_axis() -> None:
    data = named_series({"a": [(1, 10), (2, 0), (3, 1_000), (4, 100)]})
    drawn = line_chart(ChartOptions(title="t"), data, data.span, is_log=True)

    assert drawn.count("<circle") == 1
    assert drawn.count('class="line s0"') == 1


def test_grouped_bars_show_each_value_and_the_reference() -> None:
    drawn = row_chart(ChartOptions(title="t", y_title="ratio"), BARS, grouped=True, reference=1)

    widths = [float(width) for width in re.findall(r'<rect class="fill s\d" [^>]*width="([\d.]+)"', drawn)]
    assert [width / widths[1] for width in widths] == pytest.approx([4, 1, 2, 8], rel=0.01)
    assert re.findall(r'<text class="tick"[^>]*>([^<]*)', drawn) == ["2", "0.5", "1", "4", "1"]
    assert "read: old  2; new  0.5" in drawn
    assert drawn.count('<line class="note"') == 1


def test_all_rows_are_drawn_where_that_is_asked_for() -> None:
    data = build_series([f"row {number}" for number in range(20)], {"n": [*range(20)]}, additive=False)

    assert "row 19" in row_chart(ChartOptions(title="t"), data, max_rows=20)
    assert "row 19" not in row_chart(ChartOptions(title="t"), data)


def test_a_page_escapes_its_texts_and_has_no_script(tmp_path: Path) -> None:
    sections = [section("<i>", html_table(["<u>"], [("<script>",), (None,)]), text="<em>")]
    text = write_page(tmp_path / "new" / "page.html", title="<b>", summary="<s>", sections=sections).read_text()

    assert not re.search(r"<(i|u|em|b|s|script)>", text)

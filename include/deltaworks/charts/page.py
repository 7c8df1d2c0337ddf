"""Self-contained HTML pages of charts and tables, in a light and a dark theme that follow the system setting.

The pages have no scripts and load nothing, so they can be saved, mailed, or served under a strict content security
policy. All texts are escaped. Series colours also differ in lightness, for colour-blind readers, and have enough
contrast with both backgrounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from pathlib import Path
from typing import Any, Final

from deltaworks.charts.drawing import escape
from deltaworks.charts.scales import OTHER, SeriesSet, format_cell

_LIGHT: Final = ("#2f6fdb", "#e08a00", "#12977a", "#b8398c", "#7456d8", "#c9362f", "#5c8a1e", "#6b7785")
_DARK: Final = ("#6ea8ff", "#f5b041", "#43d1ae", "#ef84c8", "#b39dff", "#ff8078", "#a5d45c", "#a3afbd")


def _series_colours(values: tuple[str, ...]) -> str:
    return "".join(f".s{number}{{--c:{value}}}" for number, value in enumerate(values))


_STYLE: Final = f"""
:root{{color-scheme:light dark;--text:#1c2733;--muted:#5d6b7a;--page:#f3f5f8;--card:#fff;--line:#dfe4ea;--grid:#e8ecf1;
--wrong:#b3261e;--wrong-ground:#fdf0ef;--box:#fff}}
{_series_colours(_LIGHT)}
@media(prefers-color-scheme:dark){{:root{{--text:#e3e9f0;--muted:#98a5b3;--page:#0f1419;--card:#182028;--line:#2c3742;
--grid:#27313b;--wrong:#ff9a91;--wrong-ground:#331d1d;--box:#202b36}}
{_series_colours(_DARK)}}}
*{{box-sizing:border-box}}
body{{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;margin:0 auto;max-width:86rem;
padding:1.25rem 1.25rem 3rem;
color:var(--text);background:var(--page)}}
nav{{margin-bottom:.5rem;display:flex;flex-wrap:wrap;gap:.25rem .75rem;align-items:center}}
form{{display:inline-flex;flex-wrap:wrap;gap:.25rem .5rem;align-items:center}}
input,button,select{{font:inherit;color:inherit;background:var(--card);border:1px solid var(--muted);border-radius:4px;
padding:.05rem .4rem}}a{{color:inherit}}[hidden]{{display:none!important}}
.saved{{display:contents}}.saved button{{border:0;padding:0 .3rem;background:none;color:var(--muted);cursor:pointer}}
nav a[aria-current]{{font-weight:600;text-decoration:none}}
header{{margin-bottom:1rem}}header p{{margin:.15rem 0;color:var(--muted)}}
h1{{font-size:1.5rem;line-height:1.2;margin:.2rem 0}}
dl{{display:flex;flex-wrap:wrap;gap:.1rem .45rem;margin:.5rem 0 1rem;font-size:.85rem;color:var(--muted)}}
dl div{{display:flex;gap:.45rem}}
dd{{margin:0 .8rem 0 0;color:var(--text);font-variant-numeric:tabular-nums}}.failed{{color:var(--wrong);
font-weight:600}}
main{{display:grid;grid-template-columns:repeat(12,minmax(0,1fr));gap:1rem}}
section{{grid-column:span 6;background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:.8rem 1rem .6rem;
display:flex;flex-direction:column}}
section.number{{grid-column:span 3}}section.wide{{grid-column:1/-1}}
@media(max-width:64rem){{section{{grid-column:1/-1}}section.number{{grid-column:span 6}}}}
@media(max-width:32rem){{section.number{{grid-column:1/-1}}.chart svg{{min-width:30rem}}
section.wide .chart{{direction:rtl}}section.wide .chart svg{{direction:ltr;min-width:52rem}}}}
h2{{font-size:.95rem;font-weight:600;margin:0}}
.text{{margin:.1rem 0 0;font-size:.8rem;color:var(--muted)}}
.body{{flex:1;padding:.5rem 0;min-width:0}}
footer{{display:flex;justify-content:space-between;gap:1rem;border-top:1px solid var(--grid);padding-top:.4rem;
font-size:.76rem;
color:var(--muted)}}
.age{{cursor:help}}.cut{{color:var(--wrong);font-weight:600}}.legend .note{{margin:0}}
.problem{{margin:0;padding:.6rem .8rem;border-radius:6px;background:var(--wrong-ground);color:var(--wrong);
font-size:.88rem;
overflow-wrap:anywhere}}
.empty{{margin:0;padding:2rem .5rem;text-align:center;color:var(--muted)}}.note{{color:var(--muted);font-size:.8rem;
margin:.3rem 0 0}}
.number .number,p.number{{font-size:2.1rem;line-height:1.15;font-weight:650;margin:0;
font-variant-numeric:tabular-nums}}
p.number small{{display:block;font-size:.78rem;font-weight:400;color:var(--muted);margin-top:.1rem}}
.spark{{width:100%;height:46px;margin-top:.4rem;display:block}}
.chart{{overflow-x:auto}}.chart svg{{display:block;width:100%;height:auto;overflow:visible}}
svg text{{font-size:11px;fill:var(--muted);font-variant-numeric:tabular-nums}}
svg text.row,svg text.axis{{fill:var(--text);font-size:12px}}
.grid{{stroke:var(--grid)}}.mark,.base{{stroke:var(--line)}}
.line{{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round;
vector-effect:non-scaling-stroke}}
.fill,.solid{{fill:var(--c)}}.solid{{fill-opacity:.55}}.soft{{fill:var(--c);fill-opacity:.16}}
.band{{fill:var(--c);fill-opacity:.14;stroke:var(--c);stroke-opacity:.35;stroke-dasharray:2 3;stroke-width:.8}}
.point{{fill:var(--c);stroke:transparent;stroke-width:9;pointer-events:all}}
.hit>rect,.strip{{fill:transparent}}.strip:hover{{fill:var(--text);fill-opacity:.05}}
.tip{{visibility:hidden;pointer-events:none}}.hit:hover .tip{{visibility:visible}}
.tip line{{stroke:var(--muted);stroke-dasharray:3 3}}.tip .box{{fill:var(--box);stroke:var(--line)}}
.tip text{{fill:var(--text)}}.tip text.head{{font-weight:600}}
.fired{{fill:var(--wrong);fill-opacity:.13}}line.note{{stroke:var(--text);stroke-dasharray:2 3}}
.flag rect{{fill:var(--text)}}.flag.rule rect{{fill:var(--wrong)}}.flag text{{fill:var(--card);font-size:9px;
font-weight:600}}
.happened ol{{margin:.4rem 0 0;padding-left:1.6rem;font-size:.86rem;overflow-wrap:anywhere}}
.happened .rule-mark::marker{{color:var(--wrong);font-weight:600}}
.legend{{display:flex;flex-wrap:wrap;gap:.15rem .9rem;list-style:none;margin:.4rem 0 0;padding:0;font-size:.8rem}}
.legend i{{display:inline-block;width:.65rem;height:.65rem;border-radius:2px;background:var(--c);margin-right:.35rem}}
.table{{overflow:auto;max-height:20rem}}table{{border-collapse:collapse;width:100%;font-size:.86rem}}
th,td{{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--grid);vertical-align:top}}
th{{position:sticky;top:0;background:var(--card);color:var(--muted);font-weight:600}}
.n{{text-align:right;font-variant-numeric:tabular-nums}}
"""


def html_page(title: str, body: str, *, head: str = "", style: str = "") -> str:
    """Renders a page.

    Args:
        head: HTML before the title.
        style: CSS after that of all pages.
    """
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1">{head}'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style>{body}</html>\n"
    )


def write_page(path: Path, *, title: str, summary: str, sections: Iterable[str], style: str = "") -> Path:
    """Writes a page of sections, creating folders, and returns its path.

    Args:
        summary: plain text above the sections; may be empty.
    """
    text = f"<p>{escape(summary)}</p>" if summary else ""
    body = f"<header><h1>{escape(title)}</h1>{text}</header><main>{''.join(sections)}</main>"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html_page(title, body, style=style), encoding="utf-8")
    return path


def section(title: str, body: str, *, size: str = "wide", text: str = "", footer: str = "") -> str:
    """Renders a titled part of a page.

    Args:
        body: HTML.
        size: `number`, `half` or `wide`.
        footer: HTML; may be empty.
    """
    description = f'<p class="text">{escape(text)}</p>' if text else ""
    end = f"<footer>{footer}</footer>" if footer else ""
    return f'<section class="{size}"><h2>{escape(title)}</h2>{description}<div class="body">{body}</div>{end}</section>'


def with_legend(chart: str, data: SeriesSet) -> str:
    """Adds a legend to a chart if its series have names."""
    if not data.is_named:
        return f'<div class="chart">{chart}</div>'
    names = "".join(
        f'<li><i class="s{number}"></i>{escape(item.name[:60])}</li>' for number, item in enumerate(data.series)
    )
    if data.omitted_count:
        is_summed = any(item.name == OTHER for item in data.series)
        note = f"{OTHER}: {data.omitted_count} more" if is_summed else f"{data.omitted_count} smaller series not shown"
        names += f'<li class="note">{note}</li>'
    return f'<div class="chart">{chart}</div><ul class="legend">{names}</ul>'


def html_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, format_value: Callable[[Any], str] = format_cell
) -> str:
    """Renders a table. Columns of numbers are aligned to the right."""
    kinds = [
        ' class="n"' if all(isinstance(row[position], Number | None) for row in rows) else ""
        for position in range(len(columns))
    ]
    head = "".join(f"<th{kind}>{escape(name)}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(format_value(value))}</td>" for value, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'

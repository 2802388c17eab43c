"""Plots as SVG within a page of HTML: no script, no file beside it, light or dark as one reads.

Rule 1: whatever comes from a message is escaped before it stands in a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import msgspec

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 220, 64, 28, 10

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --pale: #667085; --line: #d8dde6;
  --ground: #ffffff; --bar: #2f6fdd; --card: #f6f8fb; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --pale: #98a2b3; --line: #333b49;
  --ground: #12161d; --bar: #6ea3ff; --card: #1a202a; } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { color: var(--pale); margin: .3rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.facts div { background: var(--card); border-radius: .5rem; padding: .6rem 1rem; }
.facts b { display: block; font-size: 1.25rem; }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: left; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
th { color: var(--pale); font-weight: 500; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; } svg text { fill: var(--pale); font: 11px system-ui, sans-serif; }
svg .bar { fill: var(--bar); } svg .grid { stroke: var(--line); }
"""


class Bar(msgspec.Struct, frozen=True):
    """One step of a plot."""

    label: str
    height: float
    text: str
    """What is shown where one points at it."""


def bars(title: str, plotted: Sequence[Bar], unit: str) -> str:
    """A plot of steps beside each other; `unit` is what their heights are."""
    most = nice(max((bar.height for bar in plotted), default=0))
    step = (_WIDTH - _LEFT) / max(len(plotted), 1)
    room = _HEIGHT - _BOTTOM - _TOP
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for part in range(5):
        at = _HEIGHT - _BOTTOM - room * part / 4
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{short(most * part / 4)}'
            "</text>"
        )
    every = max(-(-len(plotted) // 6), 1)
    for at, bar in enumerate(plotted):
        tall = room * bar.height / most if most else 0
        x, width = _LEFT + at * step, max(step - 1, 0.5)
        parts.append(
            f'<rect class="bar" x="{x:.2f}" y="{_HEIGHT - _BOTTOM - tall:.2f}" '
            f'width="{width:.2f}" height="{tall:.2f}"><title>{escape(bar.text)}</title></rect>'
        )
        if at % every == 0:
            parts.append(f'<text x="{x:.2f}" y="{_HEIGHT - 10}">{escape(bar.label)}</text>')
    parts.append("</svg>")
    return f"<h2>{escape(title)}</h2><p>{escape(unit)}</p>{''.join(parts)}"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text; all columns but the first are numbers."""
    kind = ["", *[' class="number"'] * (len(heads) - 1)]
    head = "".join(f"<th{k}>{escape(name)}</th>" for k, name in zip(kind, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(text)}</td>" for k, text in zip(kind, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


def page(title: str, told: str, facts: Sequence[tuple[str, str]], parts: Sequence[str]) -> str:
    """A whole page."""
    cards = "".join(f"<div><b>{escape(text)}</b>{escape(name)}</div>" for name, text in facts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(told)}</p>"
        f'<div class="facts">{cards}</div>{"".join(parts)}</body></html>\n'
    )


def nice(most: float) -> float:
    """The end of an axis: the next of 1, 2, 5 times a power of ten."""
    if most <= 0:
        return 1
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    return next(power * step for step in (1, 2, 5, 10) if power * step >= most)


def short(number: float) -> str:
    """A number in few characters."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"

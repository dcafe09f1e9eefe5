"""SVG pictures. Text is escaped; colours are CSS classes, so that they follow light and dark mode."""

from collections.abc import Iterable, Sequence
from typing import Final

from markupsafe import Markup, escape

from gateway.web.dashboard.html import cleaned

_LEAST: Final = 2.0
"""The least width of a box, and of the gap between two."""
_STEPS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


def element(name: str, *children: str, **attributes: object) -> Markup:
    """One element. In attribute names a trailing underscore is dropped and others become dashes."""
    given = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = [escape(cleaned(child)) for child in children]
    return Markup(f"<{name}{''.join(given)}>{''.join(inner)}</{name}>")


def picture(width: float, height: float, label: str, *children: str, class_: str, stretched: bool = False) -> Markup:
    """The SVG root. `label` is the text for screen readers."""
    return element(
        "svg",
        element("title", label),
        *children,
        viewBox=f"0 0 {_text(width)} {_text(height)}",
        preserveAspectRatio="none" if stretched else None,
        role="img",
        class_=class_,
    )


def text(x: float, y: float, words: str, class_: str = "label", anchor: str = "start") -> Markup:
    return element("text", words, x=x, y=y, class_=class_, text_anchor=anchor)


def box(x: float, y: float, width: float, height: float, class_: str, *children: str, round_: float = 0) -> Markup:
    return element("rect", *children, x=x, y=y, width=max(width, 0), height=max(height, 0), rx=round_, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Iterable[tuple[float, float]], class_: str, *, closed: bool = False) -> Markup:
    joined = " L".join(f"{_text(x)} {_text(y)}" for x, y in points)
    return element("path", d=f"M{joined}{' Z' if closed else ''}", class_=class_)


def boxes(intervals: Iterable[tuple[float, float]], y: float, height: float, class_: str) -> Markup:
    """One path for many boxes, from their left and right edges. Boxes that nearly touch become one."""
    merged: list[tuple[float, float]] = []
    for left, right in sorted((left, max(right, left + _LEAST)) for left, right in intervals):
        if merged and left < merged[-1][1] + _LEAST:
            merged[-1] = merged[-1][0], max(merged[-1][1], right)
        else:
            merged.append((left, right))
    up = _text(float(height))
    shapes = (f"M{_text(left)} {_text(y)}h{_text(right - left)}v{up}H{_text(left)}z" for left, right in merged)
    return element("path", d="".join(shapes), class_=class_)


def ticks(most: float, count: int = 4) -> Sequence[float]:
    """About `count` round values from 0 to at least `most`."""
    unit = 10.0**-3 if most < 1 else 1.0
    step = next((step * unit for step in _STEPS if step * unit * count >= most), most / count or unit)
    return [step * index for index in range(count + 1) if step * (index - 1) < most or index == 1]


def _text(value: object) -> object:
    """Floats with one decimal at most."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else value

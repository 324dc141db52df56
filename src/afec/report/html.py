"""Text on its way into a page: what a user has named is shown, and never obeyed."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

__all__ = ["clean", "prose", "tag"]

# Control characters, marks that turn the direction of text, and halves of characters (names of files that are not UTF-8).
_STRANGE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff\ufffe\uffff]"
)
MOST = 20_000
NAME, DRAWN = 400, 2_000_000
LONG = ("d", "data_v", "data_names")
"""Attributes that we write ourselves and that are as long as a drawing is."""


def clean(text: str, most: int = MOST) -> str:
    """Without characters that cannot be seen or written, and not longer than `most`."""
    text = _STRANGE.sub("\N{REPLACEMENT CHARACTER}", text[: most + 1])
    return text if len(text) <= most else text[:most] + " …"


def tag(name: str, *children: str | Markup, **attributes: object) -> Markup:
    """An element; everything that is no markup is escaped. `class_` is `class`, `data_t` is `data-t`; None leaves one out."""
    written = Markup("").join(
        Markup(' {}="{}"').format(
            Markup(key.rstrip("_").replace("_", "-")), clean(_shown(value), DRAWN if key in LONG else NAME)
        )
        for key, value in attributes.items()
        if value is not None
    )
    inner = Markup("").join(child if isinstance(child, Markup) else escape(clean(child, NAME)) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, inner)


def prose(text: str, most: int = 2000) -> Markup:
    """Words of ours, `code` in them as code."""
    parts = clean(text, most).split("`")
    return Markup("").join(tag("code", part) if place % 2 else escape(part) for place, part in enumerate(parts))


def _shown(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)

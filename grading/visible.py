"""Text of others made safe to show: what a terminal would obey, or a reader could not see, is written out."""

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Controls, formats (bidirectional ones, zero widths), lone surrogates, and separators that start a new line."""


def visible(text: str) -> str:
    """The text with every control, bidirectional and invisible character as ``⟨U+202E⟩``.

    Line feeds are written out too: a caller that shows several lines splits them first.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(character):04X}⟩" if unicodedata.category(character) in HIDDEN else character for character in text
    )

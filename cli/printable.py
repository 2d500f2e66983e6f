"""Between text that others wrote and a terminal.

Rule: what a user's code, a node, a store, a cloud or a file says passes here before it is shown. It
may say what it likes; it moves no cursor, changes no colour, title or order of reading, and looks
like no other text.
"""

import unicodedata

_LAYOUT = "\n\t"


def printable(text: str) -> str:
    """The text with what could steer a terminal as an escape; lines, tabs and spaces stay."""
    if text.isascii() and text.translate(_WITHOUT_LAYOUT).isprintable():
        return text
    return "".join(one if _is_harmless(one) else ascii(one)[1:-1] for one in text)


_WITHOUT_LAYOUT = dict.fromkeys(map(ord, _LAYOUT))


def _is_harmless(one: str) -> bool:
    return one in _LAYOUT or one.isprintable() or unicodedata.category(one) == "Zs"

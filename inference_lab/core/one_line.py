"""A line is a line: text that others have chosen, as it may stand in one."""


def one_line(text: str) -> str:
    """The text with everything that is no printable character escaped, as Python escapes it in a string."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short_line(text: str, longest: int) -> str:
    """The text as `one_line` has it, of which `longest` characters are shown; a text that is cut says by how much."""
    left = len(text) - longest
    return one_line(text) if left <= 0 else f"{one_line(text[:longest])}… ({left} more characters)"

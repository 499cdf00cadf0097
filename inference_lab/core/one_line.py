"""A line is a line: text that others have chosen, as it may stand in one."""


def one_line(text: str) -> str:
    """The text with everything that is no printable character escaped, as Python escapes it in a string."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

"""How responses end that did not end as their script says."""

from enum import Enum


class Unplanned(str, Enum):
    """The endings that no death asks for; those that one may ask for are `faults.death.CLOSES`."""

    CLIENT_LEFT = "client_left"
    READER_TIMEOUT = "reader_timeout"
    """The reader took nothing for too long, and was reset."""
    REFUSED = "refused"
    """A whole answer with an error status."""
    PIPELINED = "pipelined"
    """Reset, since the client sent too much after an unfinished response."""
    SHUTDOWN = "shutdown"
    SERVER_LOST = "server_lost"
    """The process was gone before the response ended: written by the next one that opens the file."""
    DEFECT = "defect"
    """Reset, since the script failed; the log has the traceback."""

    def __str__(self) -> str:
        """The value, as Python 3.11's StrEnum has it."""
        return self.value

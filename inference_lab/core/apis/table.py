"""**The table of APIs**, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.apis.chat.api import CHAT
from inference_lab.core.apis.completions.api import COMPLETIONS
from inference_lab.core.apis.messages.api import MESSAGES
from inference_lab.core.apis.responses.api import RESPONSES

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api

APIS: Final[dict[str, Api[Any]]] = {api.name: api for api in (CHAT, COMPLETIONS, MESSAGES, RESPONSES)}


def api_at(path: bytes) -> Api[Any]:
    """Whose errors a path has: those of the API that the path lies in, else chat's."""
    for api in APIS.values():
        own = api.path.encode()
        if path == own or path.startswith(own + b"/"):
            return api
    return CHAT

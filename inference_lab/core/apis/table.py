"""**The table of APIs**, by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inference_lab.core.apis.chat.api import CHAT
from inference_lab.core.apis.completions.api import COMPLETIONS

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api

APIS: Final[dict[str, Api[Any]]] = {api.name: api for api in (CHAT, COMPLETIONS)}

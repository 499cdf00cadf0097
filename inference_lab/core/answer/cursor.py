"""Where an answer so far ends: the channel, the next word, and the markup missing before it."""

from typing import Literal

import msgspec

from inference_lab.core.prompts.messages import CallTarget


class Cursor(msgspec.Struct, frozen=True):
    """The end of an answer so far.

    `channel` is `start` where nothing is there and reasoning may still be opened, `end` after a call's argument.
    `index` is the next word's; `completion` what a torn next word lacks. `markup` is raw text to be written
    first, `arguments` what it adds to a call's JSON arguments. `name` is that of a call whose name the answer
    so far has not told whole, so that chat clients have yet to hear of it. `tag` is the one its words show
    ('' if none does), `progress` the whole words: over reasoning, content and each call, the last index + 1.
    `readable` says that what follows the last whole word begins what an answer may say next.

    `number` is that of the call it is in or after, from 0, and `called` what that one calls, where the text tells.
    `after` is what stands after the last whole call and begins what closes all calls, or the next one; None where
    something else stands there.
    """

    channel: Literal["start", "reasoning", "text", "call", "end"]
    index: int = 0
    completion: str = ""
    markup: str = ""
    arguments: str = ""
    name: str | None = None
    tag: str = ""
    progress: int = 0
    readable: bool = True
    number: int = 0
    called: CallTarget | None = None
    after: str | None = None

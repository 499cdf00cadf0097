"""What a request asks for in directives, beside its answer: faults, an echo, and the test it belongs to."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from inference_lab.core.answer.legs import directive_in
from inference_lab.core.errors import ApiError, bad_directive
from inference_lab.core.faults.applies import NEEDS_STREAM, applies, as_it_applies
from inference_lab.core.faults.directive import DirectiveError, MalformedError
from inference_lab.core.faults.plan import plan_from_prompt

if TYPE_CHECKING:
    from inference_lab.core.apis.contract import Api, Prompt
    from inference_lab.core.faults.incident import Incidents
    from inference_lab.core.faults.plan import FaultPlan
    from inference_lab.core.prompts.echo import Echo
    from inference_lab.web.checks import Accepted
    from inference_lab.wire.request import LabRequest

_log: Final = Logger()


class Directives:
    """Those of one request, each looked for when it is first asked for.

    `admitted` says whether clients may have any, `incidents` are modes beside the built-in ones.
    """

    def __init__(
        self,
        request: LabRequest,
        api: Api[Any],
        accepted: Accepted[Any],
        prompt: Prompt,
        *,
        admitted: bool,
        incidents: Incidents,
    ) -> None:
        self._request = request
        self._api = api
        self._accepted = accepted
        self.prompt = prompt
        self._proper = prompt.position.proper
        self._admitted = admitted
        self._incidents = incidents
        self._streaming = bool(accepted.body.stream)
        self.in_header = accepted.header_plan
        self.configured = as_it_applies(accepted.served.config.fault, streaming=self._streaming)

    def acting_in_prompt(self) -> FaultPlan | None:
        """The prompt's faults.

        Raises:
            ApiError: 400 for what cannot be read, or cannot act on this request.
        """
        plan = self._in_prompt
        if plan is not None and not applies(plan, streaming=self._streaming):
            raise self._bad(NEEDS_STREAM)
        return plan

    @property
    def echo(self) -> Echo | None:
        """The echo-directive.

        Raises:
            ApiError: 400 for one of another shape.
        """
        found = self._read_echo
        if isinstance(found, ApiError):
            raise found
        return found

    @cached_property
    def _read_echo(self) -> Echo | ApiError | None:
        try:
            return self._api.echo(self._accepted.body) if self._admitted else None
        except ApiError as error:
            return error

    @cached_property
    def echo_tokens(self) -> int:
        """The ids of the echo, for the usage."""
        return 0 if self.echo is None else self.echo.completion_tokens(self._accepted.served.style)

    def look_ahead(self) -> None:
        """Look for what takes long to find in a long prompt, while there is time for it."""
        with suppress(ApiError):  # raised again by whoever asks
            _ = self._in_prompt
        with suppress(ApiError):
            _ = self.echo_tokens

    @cached_property
    def test(self) -> str | None:
        """The id of the test that the request belongs to.

        It is the header `x-test-id`, else what a directive says: the fault header's, the prompt's, the echo's, the
        model's own. A directive that does not decide is not refused here, whatever is wrong with it.
        """
        if self._accepted.test is not None:
            return self._accepted.test
        if self.in_header is not None and self.in_header.test is not None:
            return self.in_header.test
        if self._admitted and "<<" in self._proper:  # as both kinds of directives in a prompt begin
            for find in (lambda: self._in_prompt, lambda: self.echo):
                with suppress(ApiError):
                    found = find()
                    if found is not None and found.test is not None:
                        return found.test
        return None if self.configured is None else self.configured.test

    @property
    def _in_prompt(self) -> FaultPlan | None:
        found = self._read_in_prompt
        if isinstance(found, ApiError):
            raise found
        return found

    @cached_property
    def _read_in_prompt(self) -> FaultPlan | ApiError | None:
        """Read once, also where it is refused: each time takes as long."""
        try:
            text = directive_in(self._proper)
            if text is None:
                return None
            if not self._admitted:
                _log.info(
                    "{request}: a <<fault:…>> in the prompt is plain text, directives are off",
                    request=self._request,
                )
                return None
            return plan_from_prompt(text, self._incidents)
        except ValueError as error:
            if not self._admitted:
                return None
            known = error if isinstance(error, DirectiveError) else MalformedError(str(error))
            return self._bad(str(known))

    def _bad(self, reason: str) -> ApiError:
        return bad_directive(f"in the prompt: {reason}", param=self._api.prompt_field)

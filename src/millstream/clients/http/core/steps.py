"""What a call does, step by step, without doing it.

A call is a generator. It yields what is to be done next (`SendRequest`, `Pause`), is sent the
result,
and returns the result; what goes wrong is thrown into it. So the same call serves those who block
and those who await, and a test can be its network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.attempts import Attempts
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import Idempotency, Request
from millstream.clients.http.core.responses import ClientResponse, Refusal, refusal_of
from millstream.clock import Clock
from millstream.errors import MalformedAnswer, MillstreamError, NodeUnreachable

T = TypeVar("T")


class SendRequest(NamedTuple):
    """Make a request, and send back its `ClientResponse`; `NodeUnreachable` where there is none."""

    request: Request
    timeout_s: float
    """How long the whole of it may take."""


class Pause(NamedTuple):
    """Wait, and send back nothing."""

    seconds: float


Step: TypeAlias = SendRequest | Pause
Steps: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What calls know of the world."""

    address: NodeUrl
    config: ClientConfig
    clock: Clock
    chance: Callable[[], float]
    """Gives numbers from 0 to below 1."""


class RetriedRequest:
    """One request, made until it was answered, refused for good, or time is up."""

    def __init__(self, around: ClientContext, request: Request) -> None:
        self._around = around
        self._request = request
        self.is_in_doubt = False
        """Whether an attempt may have been done of which nothing was heard."""

    def steps(self) -> Steps[ClientResponse]:
        """Return the answer, which says yes; raises what the node said otherwise."""
        around, request = self._around, self._request
        attempts = Attempts(around.config, now=around.clock.monotonic(), chance=around.chance)
        while True:
            left_s = attempts.left_s(around.clock.monotonic())
            timeout_s = min(left_s, around.config.answer_s_max + request.wait_s)
            try:
                answer: ClientResponse = yield SendRequest(request, timeout_s)
                refusal = refusal_of(answer)
            except NodeUnreachable as lost:
                refusal = Refusal(lost, is_temporary=True, is_in_doubt=lost.may_be_done)
            except MalformedAnswer as wrong:
                self._note_doubt(wrong, is_in_doubt=True)
                raise
            if refusal is None:
                return answer
            self._note_doubt(refusal.error, is_in_doubt=refusal.is_in_doubt)
            if not self._may_repeat(refusal):
                raise refusal.error
            now = around.clock.monotonic()
            pause_s = attempts.pause_s(now, retry_after_s=refusal.retry_after_s)
            if pause_s is None:
                raise self._given_up(refusal.error, attempts.count)
            yield Pause(pause_s)

    def _may_repeat(self, refusal: Refusal) -> bool:
        is_harmless = self._request.effect is not Idempotency.EACH or not refusal.is_in_doubt
        return refusal.is_temporary and is_harmless

    def _note_doubt(self, error: MillstreamError, *, is_in_doubt: bool) -> None:
        if not is_in_doubt or self._request.effect is Idempotency.NONE:
            return
        self.is_in_doubt = True
        if not isinstance(error, NodeUnreachable):
            error.add_note("the request may have been executed")

    def _given_up(self, error: MillstreamError, count: int) -> MillstreamError:
        """Return the last error; it says so where an earlier attempt left a doubt."""
        is_told = isinstance(error, NodeUnreachable) and error.may_be_done
        if not self.is_in_doubt or is_told:
            return error
        reason = f"gave up after {count} attempts, the last one: {error}"
        doubt = NodeUnreachable(str(self._around.address), reason, may_be_done=True)
        doubt.__cause__ = error
        return doubt


def send_with_retries(around: ClientContext, request: Request) -> Steps[ClientResponse]:
    """Make a request as often as it takes."""
    return (yield from RetriedRequest(around, request).steps())

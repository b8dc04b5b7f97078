"""Operations as generators of steps, without I/O.

An operation is a generator. It yields the next step (`SendRequest` or `Pause`), is sent the result
of that step, and returns the result of the operation; errors are thrown into it. The blocking and
the asyncio client run the same generators, and a test can run them without a network.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from millstream.clients.http.core.address import NodeUrl
from millstream.clients.http.core.attempts import Attempts
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.node_addresses import NodeAddresses
from millstream.clients.http.core.refusal import Refusal, refusal_of
from millstream.clients.http.core.request import Idempotency, Request
from millstream.clients.http.core.response import ClientResponse
from millstream.clock import Clock
from millstream.errors import MalformedAnswer, MillstreamError, NodeUnreachable

T = TypeVar("T")


class SendRequest(NamedTuple):
    """Send a request and return its `ClientResponse`; throws `NodeUnreachable` if there is none."""

    request: Request
    timeout_s: float
    """Time limit for the whole exchange."""
    address: NodeUrl
    """The node to send it to."""


class Pause(NamedTuple):
    """Wait; returns nothing."""

    seconds: float


Step: TypeAlias = SendRequest | Pause
Steps: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class ClientContext:
    """Addresses, settings, clock and randomness of a client."""

    addresses: NodeAddresses
    config: ClientConfig
    clock: Clock
    jitter: Callable[[], float]
    """Returns random numbers from 0 up to, but not including, 1."""

    @property
    def address(self) -> NodeUrl:
        """The node that is used now."""
        return self.addresses.current


class RetriedRequest:
    """Sends a request until it succeeds, is refused permanently, or the deadline passes."""

    def __init__(self, context: ClientContext, request: Request) -> None:
        self._context = context
        self._request = request
        self.is_in_doubt = False
        """Whether an attempt without a response may have been executed."""

    def steps(self) -> Steps[ClientResponse]:
        """Return the successful response; raises the error of the node otherwise."""
        context, request = self._context, self._request
        attempts = Attempts(context.config, now=context.clock.monotonic(), jitter=context.jitter)
        untried = len(context.addresses)
        while True:
            address = context.address
            left_s = attempts.left_s(context.clock.monotonic())
            timeout_s = min(left_s, context.config.answer_s_max + request.wait_s)
            try:
                answer: ClientResponse = yield SendRequest(request, timeout_s, address)
                refusal = refusal_of(answer)
            except NodeUnreachable as lost:
                refusal = Refusal(
                    lost, is_temporary=True, is_in_doubt=lost.may_be_done, is_elsewhere=True
                )
            except MalformedAnswer as wrong:
                self._record_doubt(wrong, is_in_doubt=True)
                raise
            if refusal is None:
                return answer
            self._record_doubt(refusal.error, is_in_doubt=refusal.is_in_doubt)
            if not self._may_repeat(refusal):
                raise refusal.error
            now = context.clock.monotonic()
            if refusal.is_elsewhere:
                context.addresses.move_on(address)
                untried -= 1
                if untried > 0 and attempts.left_s(now) > 0:  # Before any pause, ask the others.
                    continue
            untried = len(context.addresses)
            pause_s = attempts.pause_s(now, retry_after_s=refusal.retry_after_s)
            if pause_s is None:
                raise self._given_up(refusal.error, attempts.count)
            yield Pause(pause_s)

    def _may_repeat(self, refusal: Refusal) -> bool:
        is_harmless = self._request.effect is not Idempotency.EACH or not refusal.is_in_doubt
        return refusal.is_temporary and is_harmless

    def _record_doubt(self, error: MillstreamError, *, is_in_doubt: bool) -> None:
        if not is_in_doubt or self._request.effect is Idempotency.NONE:
            return
        self.is_in_doubt = True
        if not isinstance(error, NodeUnreachable):
            error.add_note("the request may have been executed")

    def _given_up(self, error: MillstreamError, count: int) -> MillstreamError:
        """Return the last error; if an earlier attempt may have been executed, it says so."""
        is_told = isinstance(error, NodeUnreachable) and error.may_be_done
        if not self.is_in_doubt or is_told:
            return error
        reason = f"gave up after {count} attempts, the last one: {error}"
        doubt = NodeUnreachable(str(self._context.address), reason, may_be_done=True)
        doubt.__cause__ = error
        return doubt


def send_with_retries(context: ClientContext, request: Request) -> Steps[ClientResponse]:
    """Send a request, with retries, and return its response."""
    return (yield from RetriedRequest(context, request).steps())

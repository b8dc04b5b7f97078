"""Requests that are being answered, so that they can be cut off when their caller loses a right.

Most are over in a moment. Long polls and event streams last: when the login of the caller ends, or
a right that the request relies on is taken, they are interrupted within the same turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from millstream.broker.access.access import Access
from millstream.errors import MillstreamError, NotAuthenticated
from millstream.servers.http.routing.callers import refusal
from millstream.servers.http.routing.request import HttpRequest


class RightTaken(Exception):
    """The caller of a request lost a right while it was answered."""

    def __init__(self, error: MillstreamError) -> None:
        super().__init__(str(error))
        self.error = error


class RunningRequests:
    """The requests in progress of one application, on a node with logins."""

    def __init__(self, access: Access | None) -> None:
        self._access = access
        self._requests: dict[asyncio.Task[object], HttpRequest] = {}
        self._errors: dict[asyncio.Task[object], MillstreamError] = {}
        if access is not None:
            access.on_change.append(self._check)

    @contextmanager
    def watched(self, request: HttpRequest) -> Iterator[None]:
        """Cut off the request if its caller loses a right; raises `RightTaken` then."""
        task = asyncio.current_task()
        assert task is not None, "a request is answered by a task"
        self._requests[task] = request
        try:
            yield
        except asyncio.CancelledError:
            error = self._errors.pop(task, None)
            if error is None:
                raise
            task.uncancel()
            raise RightTaken(error) from None
        finally:
            self._requests.pop(task, None)
            self._errors.pop(task, None)

    def _check(self) -> None:
        access = self._access
        assert access is not None, "it was watched"
        for task, request in list(self._requests.items()):
            error = self._loss_of(request, access)
            if error is not None and task not in self._errors and task is not _current_task():
                access.counters.cut_off += 1
                self._errors[task] = error
                task.cancel()

    @staticmethod
    def _loss_of(request: HttpRequest, access: Access) -> MillstreamError | None:
        caller = request.caller
        if not access.is_current(caller):
            return NotAuthenticated("the token is not valid: it is unknown, revoked or expired")
        for operation, resource in request.granted:
            if not access.check(caller, operation, resource):
                return refusal(access, caller, operation, resource)
        return None


def _current_task() -> asyncio.Task[object] | None:
    """Return the running task: the one that makes the change is not interrupted by it."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None

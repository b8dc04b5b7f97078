"""A deferred response: nothing of it stays in memory once it was passed on."""

from __future__ import annotations

import gc
import weakref

from millstream.servers.deferred_response import DeferredResponse


class Answer:
    """Something that can be watched."""


class Request:
    """A request that refers to its response, as the response refers to it."""

    def __init__(self) -> None:
        self.deferred = DeferredResponse(self.stop)
        self.deferred.then(self.take)

    def take(self, answer: Answer) -> None:
        self.taken = weakref.ref(answer)

    def stop(self) -> None: ...


def test_records_of_a_response_are_freed_without_a_garbage_collection() -> None:
    gc.disable()
    try:
        request = Request()
        request.deferred.finish(Answer())
        assert request.taken() is None
        watched = weakref.ref(request)
        del request
        assert watched() is None
    finally:
        gc.enable()


def test_an_answer_that_comes_before_it_is_asked_for_is_passed_on_once() -> None:
    deferred, taken = DeferredResponse(), []
    deferred.finish("first")
    deferred.finish("second")
    deferred.then(taken.append)
    assert taken == ["first"]

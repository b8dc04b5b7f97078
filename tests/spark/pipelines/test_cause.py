"""Root cause of a Spark error in one sentence."""

from __future__ import annotations

import pytest

from millstream.spark.pipelines.run.cause import cause_of

QUERY = "[STREAM_FAILED] Query [id = 7e, runId = 3f] terminated with exception: "
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure:"
    " Lost task 0.0 in stage 3.0 (TID 6) (127.0.0.1 executor driver): "
)

TEXTS = {
    "Python in a task": (
        QUERY + LOST + "org.apache.spark.api.python.PythonException: Traceback (most recent call"
        ' last):\n  File "worker.py", line 9, in main\n    process()\nmillstream.errors.DataLost:'
        " offsets 3 to 9 of orders-0 are gone\n\n\tat org.apache.spark.X.y(X.scala:1)\n"
        "SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: [id = 7e]",
        "DataLost: offsets 3 to 9 of orders-0 are gone",
    ),
    "Python over several tracebacks": (
        "Traceback (most recent call last):\n  File x\nKeyError: 'a'\n\nDuring handling of the"
        " above exception, another exception occurred:\n\nTraceback (most recent call last):\n"
        "  File y\nValueError: what counts",
        "ValueError: what counts",
    ),
    "Python without a message": (
        "Traceback (most recent call last):\n  File x, in y\n    assert z\nAssertionError\n",
        "AssertionError",
    ),
    "Java in a task": (
        QUERY + LOST + "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by"
        " zero. SQLSTATE: 22012\n\tat x",
        "[DIVIDE_BY_ZERO] Division by zero.",
    ),
    "Java with causes": (
        QUERY + "Job aborted. SQLSTATE: XXKST\n\tat a\nCaused by: org.apache.spark.SparkException:"
        " wrapped\n\tat b\nCaused by: java.io.IOException: No space left on device\n\tat c",
        "No space left on device",
    ),
    "analysis": (
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found. SQLSTATE: 42P01; line 1",
        "[TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found.",
    ),
    "plain": ("something else\nand more", "something else"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("text", "cause"), TEXTS.values(), ids=TEXTS.keys())
def test_the_root_is_found(text: str, cause: str):
    assert cause_of(text) == cause


def test_a_cause_without_end_is_cut():
    assert cause_of("x" * 5000) == "x" * 1000 + " ..."

"""Root cause of a Spark error, in one sentence.

Spark wraps an error in the plan, the job, the stage, the task and two stack traces. The useful part
is the innermost: the error of a Python worker, or the message of the innermost Java exception.
"""

from __future__ import annotations

import re

_LENGTH_MAX = 1000
"""Maximum length of a cause, in characters: what fits on a screen."""

_PYTHON_ERROR = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_JAVA_CAUSE = re.compile(r"^Caused by: (?:[\w$.]+: )?(.*)$", re.MULTILINE)
_WRAPPING = re.compile(
    r"^(\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: "
    r"|.*most recent failure: Lost task [^)]*\) \([^)]*\): "
    r"|[\w$.]+(?:Exception|Error): )+"
)
_STATE = re.compile(r"\s*SQLSTATE: \w{5}.*$", re.DOTALL)


def cause_of(text: str) -> str:
    """Return the root cause in the text of a Spark error."""
    cause = _python_cause(text) or _java_cause(text) or _first_line(text)
    return cause if len(cause) <= _LENGTH_MAX else cause[:_LENGTH_MAX] + " ..."


def _python_cause(text: str) -> str | None:
    """Return the last line of the last Python traceback, without the module of the exception."""
    _, mark, traceback = text.rpartition("Traceback (most recent call last):")
    if not mark:
        return None
    for line in traceback.splitlines()[1:]:
        if not line.startswith((" ", "\t")) and (match := _PYTHON_ERROR.match(line)):
            kind = match["kind"].rpartition(".")[2]
            return f"{kind}: {match['text']}" if match["text"] else kind
    return None


def _java_cause(text: str) -> str | None:
    """Return the message of the innermost Java exception, if there is a stack trace."""
    causes = [match[1] for match in _JAVA_CAUSE.finditer(text)]
    return _plain(causes[-1]) if causes else None


def _first_line(text: str) -> str:
    return _plain(text.strip().split("\n", 1)[0])


def _plain(line: str) -> str:
    return _STATE.sub("", _WRAPPING.sub("", line)).strip()

"""Reader of acknowledgement files: line by line, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator

from millstream.audit.acknowledgements.line import (
    LINE_SIZE_MAX,
    Acknowledgement,
    check_header,
    decode_line,
)
from millstream.errors import CorruptFile, MillstreamError


class AcknowledgementReader:
    """Reader of a file that may still be written.

    Torn is not corrupt: a client that was killed, or is still writing, leaves a last line without
    its end; it is skipped, and `is_torn` is set. Any other damage raises `CorruptFile` or
    `UnknownFormat` with the line number.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_torn = False
        """Whether the last line was skipped; valid once all was read."""

    def __iter__(self) -> Iterator[tuple[int, Acknowledgement]]:
        """Yield the acknowledgements with their line numbers."""
        number = 0
        with open(self.path, "rb") as file:
            while data := file.readline(LINE_SIZE_MAX + 1):
                number += 1
                if not data.endswith(b"\n"):
                    if len(data) > LINE_SIZE_MAX:
                        raise self._corrupt(number, f"longer than {LINE_SIZE_MAX} bytes")
                    self.is_torn = True
                    return
                try:
                    if number > 1:
                        yield number, decode_line(data)
                    else:
                        check_header(data)
                except MillstreamError as error:
                    raise type(error)(f"{self.path}: line {number}: {error}") from None
        if number == 0:
            self.is_torn = True  # Killed before its first line was written.

    def _corrupt(self, number: int, what: str) -> CorruptFile:
        return CorruptFile(f"{self.path}: line {number}: {what}")

"""A Kafka node with scripted responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.message import encode
from millstream.protocols.kafka.header import decode_request_header, encode_response_header
from millstream.protocols.kafka.messages.versions import ApiVersionsResponse, ApiVersionsResponseApi

ALL_APIS = {api.key: (api.versions.first, api.versions.last) for api in APIS.values()}


class FakeNode:
    """Listens, and answers each request with the result of `answer(header, body)`.

    The result is encoded bytes, a message, or `None` for no response. ApiVersions requests are
    answered with `apis` unless `answers_versions` is false.
    """

    def __init__(self, answer, *, apis=None, answers_versions=True):
        self._answer = answer
        self._apis = ALL_APIS if apis is None else apis
        self._answers_versions = answers_versions
        self.asked = []
        """The header of each request, in order."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._sockets = []
        self._threads = []
        self._start(self._accept)

    @property
    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                self._start(self._serve, client)

    def _serve(self, client):
        with contextlib.suppress(OSError):
            while (size := _exactly(client, 4)) is not None:
                frame = _exactly(client, struct.unpack(">i", size)[0])
                header, body = decode_request_header(memoryview(frame))
                self.asked.append(header)
                if (data := self._data(header, body)) is not None:
                    client.sendall(data)

    def _data(self, header, body):
        if header.api_key == 18 and self._answers_versions:
            answer = ApiVersionsResponse(
                api_keys=tuple(
                    ApiVersionsResponseApi(api_key=key, min_version=first, max_version=last)
                    for key, (first, last) in self._apis.items()
                )
            )
        else:
            answer = self._answer(header, body)
        return answer if answer is None or isinstance(answer, bytes) else framed(header, answer)


def framed(header, answer):
    """Return a response as encoded on the wire."""
    head = encode_response_header(header.api_key, header.api_version, header.correlation_id)
    body = head + encode(answer, header.api_version)
    return struct.pack(">i", len(body)) + body


def _exactly(client, size):
    data = bytearray()
    while len(data) < size:
        piece = client.recv(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)

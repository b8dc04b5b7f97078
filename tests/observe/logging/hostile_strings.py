"""A hundred strings that a client could send to forge a log line or control a terminal."""

from __future__ import annotations

_ENDS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
_FORGED = '{"time":"2026-01-01T00:00:00.000Z","level":"critical","event":"forged"}'
_CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
_OTHERS = [
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b[31mred", "\x9b31m", "\x1bP+q\x1b\\",
    "\u202eevil", "\u2066hidden\u2069", "\u200b", "\ufeff", "a\u0300" * 50, "\U0001f4a9",
    "\U0010ffff",
    '"', '\\"', "\\", "\\n", "\\u000a", "'", "`", "$(x)", "%s %d %n", "{0}", "{event}",
    "</script><script>", "../../etc/passwd", "' OR 1=1 --", "NaN", "null", "", " ", "\t",
    '","level":"critical","x":"', "=1 level=critical", "x" * 9_000,
]  # fmt: skip

NASTY = [
    *(f"before{end}{_FORGED}" for end in _ENDS),
    *_OTHERS,
    *(f"a{control}b" for control in _CONTROLS),
]
assert len(NASTY) >= 100

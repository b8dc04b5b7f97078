"""Names of tables in a SQL query, found without Spark.

This understands enough of SQL to order steps and to report wrong names before Spark starts: the
names after FROM and JOIN, and the names that WITH defines. Spark checks the query itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_WORD = re.compile(
    r"""
    (?P<space>\s+ | --[^\n]* | /\*.*?\*/)
  | (?P<text>[rR]?'(?:[^'\\]|\\.|'')*' | [rR]?"(?:[^"\\]|\\.|"")*")
  | (?P<name>`(?:[^`]|``)*` | [^\W\d]\w*)
  | (?P<sign>\d[\w.]* | .)
    """,
    re.VERBOSE | re.DOTALL,
)

_FROM_IS_NO_TABLE = frozenset({"EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY", "POSITION"})
"""Functions that have a FROM between their arguments."""

_BEGINS_A_QUERY = frozenset({"SELECT", "WITH", "VALUES", "FROM"})

_BEFORE_A_TABLE = frozenset({"LATERAL", "STREAM"})

_FOLLOWS_A_LIST = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET"}
    | {"WINDOW", "QUALIFY", "UNION", "EXCEPT", "MINUS", "INTERSECT", "SELECT", "VIEW", "|"}
)
"""Words that end the list of tables after FROM; a comma after them separates something else.
`VIEW` is that of LATERAL VIEW, the bar that of `|>`. """


class Relations(NamedTuple):
    """Names in a query, in lower case."""

    read: frozenset[str]
    """Tables named by one word."""
    given: frozenset[str]
    """Names that the query defines with WITH."""


def relations(sql: str) -> Relations:
    """Return the tables that a query reads, and the names that it defines.

    Names with several parts (`shop.orders`) are tables of Spark's catalog and are not included.
    """
    words = [*_words(sql), "", "", ""]
    given = frozenset(_given(words))
    return Relations(frozenset(_read(words)) - given, given)


def _words(sql: str) -> Iterator[str]:
    """Split a query into names, in a form that can be compared, and other tokens."""
    for match in _WORD.finditer(sql):
        if match.lastgroup == "name":
            name = match[0]
            yield f"`{name[1:-1].lower()}" if name[0] == "`" else name.upper()
        elif match.lastgroup != "space":
            yield "'" if match.lastgroup == "text" else match[0]


def _is_name(word: str) -> bool:
    return word[:1] == "`" or word[:1].isidentifier()


def _plain(word: str) -> str:
    return word.lstrip("`").lower()


def _given(words: list[str]) -> Iterator[str]:
    """Yield the names before AS and a parenthesis, in a query that has a WITH.

    If columns are listed between them, the name is the one before their parenthesis.
    """
    if "WITH" not in words:
        return
    for number, word in enumerate(words):
        if word == "AS" and words[number + 1] == "(":
            at = number - 1
            if words[at] == ")":
                while at > 0 and words[at] != "(":
                    at -= 1
                at -= 1
            if at >= 1 and _is_name(words[at]) and words[at - 1] in ("WITH", "RECURSIVE", ","):
                yield _plain(words[at])


def _read(words: list[str]) -> Iterator[str]:
    """Yield the names where a table is expected."""
    brackets: list[tuple[bool, bool]] = []
    is_function = is_list = is_expected = False
    for number, word in enumerate(words[:-3]):
        if word == "(":
            brackets.append((is_function, is_list))
            is_function = number > 0 and words[number - 1] in _FROM_IS_NO_TABLE
            # What is in brackets after FROM may be a query, or tables that are joined.
            is_list = is_expected = is_expected and words[number + 1] not in _BEGINS_A_QUERY
        elif word == ")":
            is_function, is_list = brackets.pop() if brackets else (False, False)
            is_expected = False
        elif number > 0 and words[number - 1] == ".":
            continue  # A column or a part of a name, whatever it is called.
        elif word == "FROM":
            is_expected = not is_function and (number == 0 or words[number - 1] != "DISTINCT")
            is_list = is_expected or is_list
        elif word == "JOIN" or (word == "," and is_list):
            is_expected = True
        elif word in _FOLLOWS_A_LIST:
            is_list = is_expected = False
        elif is_expected and word not in _BEFORE_A_TABLE:
            is_expected = False
            if _is_name(word) and words[number + 1] not in (".", "(") and word != "VALUES":
                yield _plain(word)

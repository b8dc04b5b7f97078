"""JSON objects to slots: one pass over the bytes, no recursion. Needs Numba.

The loop is in one of two places. At the head it reads a value for one node: a scalar, or the
opening of an object or a list, which goes onto the stack. In the inner loop it stands inside the
topmost object or list: it closes it, or finds which node the next value is for.

The stack is as deep as the schema at most, since what no field asks for is skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.formats.json.number_kernels import (
    decimal_of,
    double_of,
    integer_of,
    is_beyond,
    is_exact,
    read_number,
)
from millstream.formats.json.skip_kernels import (
    CLOSE_LIST,
    CLOSE_OBJECT,
    COMMA,
    OPEN_LIST,
    OPEN_OBJECT,
    read_key,
    read_word,
    skip_value,
)
from millstream.formats.json.time_kernels import read_date, read_time
from millstream.formats.layout.json_text_kernels import QUOTE, read_string, resolve, skip_space
from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import (
    BAD_TIME,
    CUT_SHORT,
    EMPTY,
    FULL,
    MISSING,
    NOT_JSON,
    OUT_OF_RANGE,
    SOUND,
    TRAILING,
    TWICE,
    WRONG_TYPE,
    DecodeFailures,
)
from millstream.formats.layout.schema_plan import (
    BOOLEAN,
    CHILD_END,
    CHILD_START,
    DATE,
    DECIMAL,
    DOUBLE,
    FLOAT,
    HIGH,
    INSTANT,
    INTEGER,
    IS_REQUIRED,
    KIND,
    LIST,
    LOCAL_TIME,
    LOW,
    MAP,
    NAME_END,
    NAME_START,
    OPENS,
    STRUCT,
    TEXT,
    SchemaPlan,
)
from millstream.formats.layout.slot_kernels import (
    add_entry,
    clear,
    octet,
    remember,
    take_back,
    too_many,
)
from millstream.formats.layout.slots import ABSENT, PRESENT, UNSEEN, Slots
from millstream.records.kernels.compiler import Int64s, Octets

NAN, INFINITE, MINUS_INFINITE = 3, 8, 9
"""How long the words are that stand for what no number of JSON can say."""


class JsonStack(NamedTuple):
    """Objects and lists that are open, the outermost first, and memory to work with."""

    nodes: Int64s
    entries: Int64s
    hints: Int64s
    """Which field of an object is likely to come next: they often come in the declared order."""
    counts: Int64s
    """The items of each level before the row."""
    name: Octets
    """Room for the longest name of a field."""


@kernel
def decode_json(
    source: Octets,
    ends: Int64s,
    is_null: Octets,
    plan: SchemaPlan,
    slots: Slots,
    stack: JsonStack,
    failures: DecodeFailures,
    row: int,
) -> tuple[int, int]:
    """Read the values from `row` on; return the row where it ended, and the level that is full.

    Value `i` lies from `ends[i]` to `ends[i + 1]`. A bad row is null in all columns.
    """
    while row < is_null.size:
        remember(slots, stack.counts)
        clear(plan, slots, 0, row)
        if not is_null[row]:
            position, code, node = decode_row(
                source, ends[row], ends[row + 1], plan, slots, stack, row
            )
            if code != SOUND:
                take_back(plan, slots, row, stack.counts)
                if code == FULL:
                    return row, node
                failures.codes[row] = code
                failures.nodes[row] = node
                failures.positions[row] = position - ends[row]
        row += 1
    return row, 0


@kernel
def decode_row(
    source: Octets, start: int, end: int, plan: SchemaPlan, slots: Slots, stack: JsonStack, row: int
) -> tuple[int, int, int]:
    """Read one value; return the position, `SOUND` or what is wrong, and at which node.

    Where a level is full, that level comes in place of the node.
    """
    node = 0
    entry = row
    depth = 0
    position = skip_space(source, start, end)
    if position == end:
        return position, EMPTY, 0
    while True:
        # A value for `node`.
        position = skip_space(source, position, end)
        if position >= end:
            return position, CUT_SHORT, node
        found = octet(source, position)
        kind = plan.table[node, KIND]
        is_opened = False
        if kind == STRUCT or kind == LIST or kind == MAP:
            opening = OPEN_LIST if kind == LIST else OPEN_OBJECT
            if found == opening:
                slots.states[slots.bases[node] + entry] = PRESENT
                stack.nodes[depth] = node
                stack.entries[depth] = entry
                stack.hints[depth] = plan.table[node, CHILD_START]
                depth += 1
                position += 1
                is_opened = True
            else:
                after, code = read_null(source, position, end, plan, slots, node, entry)
                if code != SOUND:
                    return position, code, node
                position = after
        else:
            after, code = read_scalar(source, position, end, plan, slots, node, entry)
            if code != SOUND:
                return position, code, node
            position = after
        # Inside what is open: close it, or find the node of the next value.
        while True:
            if depth == 0:
                position = skip_space(source, position, end)
                return position, SOUND if position == end else TRAILING, 0
            around = stack.nodes[depth - 1]
            position = skip_space(source, position, end)
            if position >= end:
                return position, CUT_SHORT, around
            found = octet(source, position)
            is_list = plan.table[around, KIND] == LIST
            if found == (CLOSE_LIST if is_list else CLOSE_OBJECT):
                depth -= 1
                missing = close(plan, slots, around, stack.entries[depth])
                if missing:
                    return position, MISSING, missing
                if plan.table[around, OPENS]:
                    code = too_many(slots, stack.counts)
                    if code != SOUND:
                        return position, code, around
                position += 1
                is_opened = False
                continue
            if not is_opened:
                if found != COMMA:
                    return position, NOT_JSON, around
                position = skip_space(source, position + 1, end)
            is_opened = False
            if is_list:
                node = plan.children[plan.table[around, CHILD_START]]
                entry = add_entry(plan, slots, plan.table[around, OPENS])
                if entry < 0:
                    return position, -entry, plan.table[around, OPENS]
                break
            after, name, size = read_key(source, position, end)
            if after < 0:
                return position, -after, around
            if plan.table[around, KIND] == MAP:
                entry = add_entry(plan, slots, plan.table[around, OPENS])
                if entry < 0:
                    return position, -entry, plan.table[around, OPENS]
                note_text(slots, plan.children[plan.table[around, CHILD_START]], entry, name, size)
                node = plan.children[plan.table[around, CHILD_START] + 1]
                position = after
                break
            child = find_child(source, name, size, plan, stack, depth - 1)
            if child >= 0:
                node = child
                entry = stack.entries[depth - 1]
                if slots.states[slots.bases[node] + entry] != UNSEEN:
                    return position, TWICE, node
                position = after
                break
            after = skip_value(source, after, end)
            if after < 0:
                return position, -after, around
            position = after


@kernel
def close(plan: SchemaPlan, slots: Slots, node: int, entry: int) -> int:
    """End an object or a list; return a field that it must have and has not, or 0."""
    if plan.table[node, KIND] != STRUCT:
        slots.firsts[slots.bases[node] + entry] = slots.counts[plan.table[node, OPENS]]
        return 0
    for index in range(plan.table[node, CHILD_START], plan.table[node, CHILD_END]):
        child = plan.children[index]
        if plan.table[child, IS_REQUIRED] and slots.states[slots.bases[child] + entry] != PRESENT:
            return int(child)
    return 0


@kernel
def find_child(
    source: Octets, name: int, size: int, plan: SchemaPlan, stack: JsonStack, depth: int
) -> int:
    """Return the node of the field with that name, -1 where there is none."""
    around = stack.nodes[depth]
    start = plan.table[around, CHILD_START]
    count = plan.table[around, CHILD_END] - start
    place = name
    length = size
    text = source
    if size < 0:
        length = ~size
        if length > stack.name.size:
            return -1
        resolve(source, name, length, stack.name, 0)
        text = stack.name
        place = 0
    index = stack.hints[depth]
    for _ in range(count):
        if index >= start + count:
            index = start
        child = plan.children[index]
        index += 1
        if plan.table[child, NAME_END] - plan.table[child, NAME_START] == length and is_same(
            text, place, plan.names, plan.table[child, NAME_START], length
        ):
            stack.hints[depth] = index
            return int(child)
    return -1


@kernel
def is_same(left: Octets, left_at: int, right: Octets, right_at: int, size: int) -> bool:
    """Whether two stretches of bytes are the same."""
    for index in range(size):
        if octet(left, left_at + index) != octet(right, right_at + index):
            return False
    return True


@kernel
def read_null(
    source: Octets, position: int, end: int, plan: SchemaPlan, slots: Slots, node: int, entry: int
) -> tuple[int, int]:
    """Read `null`, where it is allowed: the position after, and `SOUND` or what is wrong."""
    after, word = -1, 0
    if octet(source, position) == 0x6E:
        after, word = read_word(source, position, end)
    if node == 0 or (after < 0 and octet(source, position) == 0x6E):
        return 0, NOT_JSON
    if word != -1:
        return 0, WRONG_TYPE
    if plan.table[node, IS_REQUIRED]:
        return 0, MISSING
    slots.states[slots.bases[node] + entry] = ABSENT
    return after, SOUND


@kernel
def note_text(slots: Slots, node: int, entry: int, start: int, size: int) -> None:
    """Enter where text lies; a size below zero is the complement of one with escapes."""
    at = slots.bases[node] + entry
    slots.states[at] = PRESENT
    slots.firsts[at] = start
    slots.seconds[at] = size


@kernel
def read_scalar(
    source: Octets, position: int, end: int, plan: SchemaPlan, slots: Slots, node: int, entry: int
) -> tuple[int, int]:
    """Read a string, a number or a word: the position after, and `SOUND` or what is wrong."""
    found = octet(source, position)
    kind = plan.table[node, KIND]
    at = slots.bases[node] + entry
    if found == QUOTE:
        after, size = read_string(source, position + 1, end)
        if after < 0:
            return 0, -after
        return after, enter_string(source, position + 1, size, plan, slots, node, at)
    if found == 0x2D or 0x30 <= found <= 0x39:
        return enter_number(source, position, end, plan, slots, node, at)
    if found == OPEN_OBJECT or found == OPEN_LIST:
        return 0, WRONG_TYPE
    after, word = read_word(source, position, end)
    if after < 0:
        return 0, NOT_JSON
    if word < 0:
        return read_null(source, position, end, plan, slots, node, entry)
    if kind != BOOLEAN:
        return 0, WRONG_TYPE
    slots.states[at] = PRESENT
    slots.firsts[at] = word
    return after, SOUND


@kernel
def enter_number(
    source: Octets, start: int, end: int, plan: SchemaPlan, slots: Slots, node: int, at: int
) -> tuple[int, int]:
    """Read a number into a node: the position after, and `SOUND` or what is wrong."""
    number = read_number(source, start, end)
    if number.end < 0:
        return 0, NOT_JSON
    kind = plan.table[node, KIND]
    if kind == INTEGER:
        if not number.is_integer:
            return 0, WRONG_TYPE
        if number.digits <= 17:
            value = -number.mantissa if number.is_negative else number.mantissa
        else:
            fits, value = integer_of(source, start, number.end)
            if not fits:
                return 0, OUT_OF_RANGE
        if value < plan.table[node, LOW] or value > plan.table[node, HIGH]:
            return 0, OUT_OF_RANGE
        slots.firsts[at] = value
    elif kind == DOUBLE and is_exact(number):
        slots.reals[at] = double_of(number)
        slots.seconds[at] = 0
    elif kind == DOUBLE or kind == FLOAT:
        if is_beyond(number, kind == DOUBLE):
            return 0, OUT_OF_RANGE
        slots.firsts[at] = start
        slots.seconds[at] = number.end - start
    elif kind == DECIMAL:
        code = enter_decimal(source, start, number.end, plan, slots, node, at)
        if code != SOUND:
            return 0, code
    else:
        return 0, WRONG_TYPE
    slots.states[at] = PRESENT
    return number.end, SOUND


@kernel
def enter_decimal(
    source: Octets, start: int, end: int, plan: SchemaPlan, slots: Slots, node: int, at: int
) -> int:
    """Read a decimal into a node; return `SOUND` or what is wrong."""
    code, low, high = decimal_of(source, start, end, plan.table[node, LOW], plan.table[node, HIGH])
    slots.firsts[at] = low
    slots.seconds[at] = high
    return code


@kernel
def enter_string(
    source: Octets, start: int, size: int, plan: SchemaPlan, slots: Slots, node: int, at: int
) -> int:
    """Enter a string into a node; return `SOUND` or what is wrong."""
    kind = plan.table[node, KIND]
    code = SOUND
    if kind == TEXT:
        slots.firsts[at] = start
        slots.seconds[at] = size
    elif size < 0:  # No other kind is written with escapes.
        code = WRONG_TYPE
    elif kind == INSTANT or kind == LOCAL_TIME:
        is_sound, micros = read_time(source, start, start + size, kind == LOCAL_TIME)
        slots.firsts[at] = micros
        code = SOUND if is_sound else BAD_TIME
        if is_sound and (micros < plan.table[node, LOW] or micros > plan.table[node, HIGH]):
            code = OUT_OF_RANGE  # An offset from UTC can lead out of the first or last year.
    elif kind == DATE:
        after, day = read_date(source, start, start + size)
        slots.firsts[at] = day
        code = SOUND if after == start + size else BAD_TIME
    elif kind == DECIMAL:
        code = enter_decimal(source, start, start + size, plan, slots, node, at)
    elif kind == DOUBLE or kind == FLOAT:
        code = enter_word(source, start, size, slots, at)
    else:
        code = WRONG_TYPE
    slots.states[at] = PRESENT
    return code


@kernel
def enter_word(source: Octets, start: int, size: int, slots: Slots, at: int) -> int:
    """Enter "NaN", "Infinity" or "-Infinity", which is how Spark writes them."""
    letter = octet(source, start + size - 1) if size else 0
    slots.firsts[at] = start
    slots.seconds[at] = size
    if size == NAN and letter == 0x4E and octet(source, start) == 0x4E:
        return SOUND if octet(source, start + 1) == 0x61 else WRONG_TYPE
    if size != INFINITE and size != MINUS_INFINITE:
        return WRONG_TYPE
    if size == MINUS_INFINITE and octet(source, start) != 0x2D:
        return WRONG_TYPE
    first = start + size - INFINITE
    return SOUND if is_infinity(source, first) else WRONG_TYPE


@kernel
def is_infinity(source: Octets, start: int) -> bool:
    """Whether `Infinity` stands here."""
    return (
        octet(source, start) == 0x49
        and octet(source, start + 1) == 0x6E
        and octet(source, start + 2) == 0x66
        and octet(source, start + 3) == 0x69
        and octet(source, start + 4) == 0x6E
        and octet(source, start + 5) == 0x69
        and octet(source, start + 6) == 0x74
        and octet(source, start + 7) == 0x79
    )

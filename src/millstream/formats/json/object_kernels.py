"""Kernels that decode JSON objects to slots: one pass over the bytes, no recursion. Need Numba.

`decode_row` alternates between two states. At the top of its outer loop it reads a value for one
node: a scalar, or the opening of an object or list, which is pushed onto the stack. In its inner
loop it is inside the topmost object or list: it closes it, or finds the node of the next value.

The stack is never deeper than the schema, because fields that are not in the schema are skipped.
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
    DUPLICATE,
    EMPTY,
    LEVEL_FULL,
    MISSING,
    NOT_JSON,
    OUT_OF_RANGE,
    SOUND,
    TRAILING,
    TRUNCATED,
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
    check_item_count,
    clear,
    octet,
    save_counts,
    undo_row,
)
from millstream.formats.layout.slots import ABSENT, PRESENT, UNSEEN, Slots
from millstream.records.kernels.compiler import Int64s, Octets

NAN, INFINITE, MINUS_INFINITE = 3, 8, 9
"""Lengths of the strings "NaN", "Infinity" and "-Infinity"."""


class JsonStack(NamedTuple):
    """Open objects and lists, the outermost first, and scratch memory, allocated by the caller."""

    nodes: Int64s
    entries: Int64s
    hints: Int64s
    """Index of the field that probably comes next: fields often come in declared order."""
    counts: Int64s
    """Number of items of each level before the current row."""
    name: Octets
    """Buffer for the longest name of a field."""


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
    """Decode values from `row` on; return the row at which it stopped, and the level that is full.

    Value `i` is `source[ends[i] : ends[i + 1]]`. A bad row is null in all columns.
    """
    while row < is_null.size:
        save_counts(slots, stack.counts)
        clear(plan, slots, 0, row)
        if not is_null[row]:
            position, code, node = decode_row(
                source, ends[row], ends[row + 1], plan, slots, stack, row
            )
            if code != SOUND:
                undo_row(plan, slots, row, stack.counts)
                if code == LEVEL_FULL:
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
    """Decode one value; return the position, `SOUND` or the reason, and the node.

    With `LEVEL_FULL`, the level is returned instead of the node.
    """
    node = 0
    entry = row
    depth = 0
    position = skip_space(source, start, end)
    if position == end:
        return position, EMPTY, 0
    while True:
        # Read a value for `node`.
        position = skip_space(source, position, end)
        if position >= end:
            return position, TRUNCATED, node
        byte = octet(source, position)
        kind = plan.table[node, KIND]
        is_opened = False
        if kind == STRUCT or kind == LIST or kind == MAP:
            opening = OPEN_LIST if kind == LIST else OPEN_OBJECT
            if byte == opening:
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
        # Inside the topmost object or list: close it, or find the node of the next value. This
        # repeats while containers close one after the other and while unknown fields are skipped.
        while True:
            if depth == 0:
                position = skip_space(source, position, end)
                return position, SOUND if position == end else TRAILING, 0
            parent = stack.nodes[depth - 1]
            position = skip_space(source, position, end)
            if position >= end:
                return position, TRUNCATED, parent
            byte = octet(source, position)
            is_list = plan.table[parent, KIND] == LIST
            if byte == (CLOSE_LIST if is_list else CLOSE_OBJECT):
                depth -= 1
                missing = close_container(plan, slots, parent, stack.entries[depth])
                if missing:
                    return position, MISSING, missing
                if plan.table[parent, OPENS]:  # A list or map: limit the items of the row.
                    code = check_item_count(slots, stack.counts)
                    if code != SOUND:
                        return position, code, parent
                position += 1
                is_opened = False
                continue
            if not is_opened:  # Every value but the first has a comma in front.
                if byte != COMMA:
                    return position, NOT_JSON, parent
                position = skip_space(source, position + 1, end)
            is_opened = False
            if is_list:
                node = plan.children[plan.table[parent, CHILD_START]]
                entry = add_entry(plan, slots, plan.table[parent, OPENS])
                if entry < 0:
                    return position, -entry, plan.table[parent, OPENS]
                break
            after, name, size = read_key(source, position, end)
            if after < 0:
                return position, -after, parent
            if plan.table[parent, KIND] == MAP:
                entry = add_entry(plan, slots, plan.table[parent, OPENS])
                if entry < 0:
                    return position, -entry, plan.table[parent, OPENS]
                store_text(slots, plan.children[plan.table[parent, CHILD_START]], entry, name, size)
                node = plan.children[plan.table[parent, CHILD_START] + 1]
                position = after
                break
            child = find_child(source, name, size, plan, stack, depth - 1)
            if child >= 0:
                node = child
                entry = stack.entries[depth - 1]
                # Also explicit null counts as seen, so `{"a":null,"a":1}` is a duplicate.
                if slots.states[slots.bases[node] + entry] != UNSEEN:
                    return position, DUPLICATE, node
                position = after
                break
            # No column has this field. Stay in the inner loop: a comma or the end must follow.
            after = skip_value(source, after, end)
            if after < 0:
                return position, -after, parent
            position = after


@kernel
def close_container(plan: SchemaPlan, slots: Slots, node: int, entry: int) -> int:
    """End an object or list; return a required field that is missing, or 0."""
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
    """Return the node of the field with that name, or -1."""
    parent = stack.nodes[depth]
    start = plan.table[parent, CHILD_START]
    count = plan.table[parent, CHILD_END] - start
    text_start = name
    length = size
    text = source
    if size < 0:  # A name with escapes: resolve it before the comparison.
        length = ~size
        if length > stack.name.size:
            return -1
        resolve(source, name, length, stack.name, 0)
        text = stack.name
        text_start = 0
    # Start at the hint and wrap around, so that fields in declared order cost one comparison.
    index = stack.hints[depth]
    for _ in range(count):
        if index >= start + count:
            index = start
        child = plan.children[index]
        index += 1
        if plan.table[child, NAME_END] - plan.table[child, NAME_START] == length and bytes_equal(
            text, text_start, plan.names, plan.table[child, NAME_START], length
        ):
            stack.hints[depth] = index
            return int(child)
    return -1


@kernel
def bytes_equal(left: Octets, left_at: int, right: Octets, right_at: int, size: int) -> bool:
    for index in range(size):
        if octet(left, left_at + index) != octet(right, right_at + index):
            return False
    return True


@kernel
def read_null(
    source: Octets, position: int, end: int, plan: SchemaPlan, slots: Slots, node: int, entry: int
) -> tuple[int, int]:
    """Read `null` for a node; return the position after it, and `SOUND` or the reason."""
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
def store_text(slots: Slots, node: int, entry: int, start: int, size: int) -> None:
    """Store the position of text. With escapes, `size` is the complement of the resolved size."""
    slot = slots.bases[node] + entry
    slots.states[slot] = PRESENT
    slots.firsts[slot] = start
    slots.seconds[slot] = size


@kernel
def read_scalar(
    source: Octets, position: int, end: int, plan: SchemaPlan, slots: Slots, node: int, entry: int
) -> tuple[int, int]:
    """Read a string, number or word; return the position after it, and `SOUND` or the reason."""
    byte = octet(source, position)
    kind = plan.table[node, KIND]
    slot = slots.bases[node] + entry
    if byte == QUOTE:
        after, size = read_string(source, position + 1, end)
        if after < 0:
            return 0, -after
        return after, store_string(source, position + 1, size, plan, slots, node, slot)
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        return store_number(source, position, end, plan, slots, node, slot)
    if byte == OPEN_OBJECT or byte == OPEN_LIST:
        return 0, WRONG_TYPE
    after, word = read_word(source, position, end)
    if after < 0:
        return 0, NOT_JSON
    if word < 0:
        return read_null(source, position, end, plan, slots, node, entry)
    if kind != BOOLEAN:
        return 0, WRONG_TYPE
    slots.states[slot] = PRESENT
    slots.firsts[slot] = word
    return after, SOUND


@kernel
def store_number(
    source: Octets, start: int, end: int, plan: SchemaPlan, slots: Slots, node: int, slot: int
) -> tuple[int, int]:
    """Read a number and store it; return the position after it, and `SOUND` or the reason."""
    number = read_number(source, start, end)
    if number.end < 0:
        return 0, NOT_JSON
    kind = plan.table[node, KIND]
    if kind == INTEGER:
        if not number.is_integer:
            return 0, WRONG_TYPE
        if number.digits <= 17:  # `mantissa` has all digits.
            value = -number.mantissa if number.is_negative else number.mantissa
        else:
            fits, value = integer_of(source, start, number.end)
            if not fits:
                return 0, OUT_OF_RANGE
        if value < plan.table[node, LOW] or value > plan.table[node, HIGH]:
            return 0, OUT_OF_RANGE
        slots.firsts[slot] = value
    elif kind == DOUBLE and is_exact(number):
        slots.reals[slot] = double_of(number)
        slots.seconds[slot] = 0
    elif kind == DOUBLE or kind == FLOAT:
        # Not exact by one rounding: leave it as text, marked by a size, for `assembly._real`.
        if is_beyond(number, kind == DOUBLE):
            return 0, OUT_OF_RANGE
        slots.firsts[slot] = start
        slots.seconds[slot] = number.end - start
    elif kind == DECIMAL:
        code = store_decimal(source, start, number.end, plan, slots, node, slot)
        if code != SOUND:
            return 0, code
    else:
        return 0, WRONG_TYPE
    slots.states[slot] = PRESENT
    return number.end, SOUND


@kernel
def store_decimal(
    source: Octets, start: int, end: int, plan: SchemaPlan, slots: Slots, node: int, slot: int
) -> int:
    """Store a decimal; return `SOUND` or the reason."""
    code, low, high = decimal_of(source, start, end, plan.table[node, LOW], plan.table[node, HIGH])
    slots.firsts[slot] = low
    slots.seconds[slot] = high
    return code


@kernel
def store_string(
    source: Octets, start: int, size: int, plan: SchemaPlan, slots: Slots, node: int, slot: int
) -> int:
    """Store a string, or the number, date or time in it; return `SOUND` or the reason."""
    kind = plan.table[node, KIND]
    code = SOUND
    if kind == TEXT:
        slots.firsts[slot] = start
        slots.seconds[slot] = size
    elif size < 0:  # Numbers, dates and times have no escapes.
        code = WRONG_TYPE
    elif kind == INSTANT or kind == LOCAL_TIME:
        is_valid, micros = read_time(source, start, start + size, kind == LOCAL_TIME)
        slots.firsts[slot] = micros
        code = SOUND if is_valid else BAD_TIME
        if is_valid and (micros < plan.table[node, LOW] or micros > plan.table[node, HIGH]):
            code = OUT_OF_RANGE  # An offset can move the time out of the years 1 to 9999.
    elif kind == DATE:
        after, day = read_date(source, start, start + size)
        slots.firsts[slot] = day
        code = SOUND if after == start + size else BAD_TIME
    elif kind == DECIMAL:
        code = store_decimal(source, start, start + size, plan, slots, node, slot)
    elif kind == DOUBLE or kind == FLOAT:
        code = store_special_real(source, start, size, slots, slot)
    else:
        code = WRONG_TYPE
    slots.states[slot] = PRESENT
    return code


@kernel
def store_special_real(source: Octets, start: int, size: int, slots: Slots, slot: int) -> int:
    """Store "NaN", "Infinity" or "-Infinity", which is how Spark writes them."""
    letter = octet(source, start + size - 1) if size else 0
    slots.firsts[slot] = start
    slots.seconds[slot] = size
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
    """Whether the bytes at `start` are `Infinity`."""
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

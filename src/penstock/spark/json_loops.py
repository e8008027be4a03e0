"""The compiled loops of the scan: JSON objects to cells of columns, read where they lie in the fetched bytes.

One pass over each value; names are compared with the column that usually comes next. What is rare or wrong makes a row *hard*: the full
reader in `serde.py` decides about it. Invariants: a row that is read here is read as the full reader would; no read or write outside
the arrays, whatever the bytes say (numba checks no bounds). Not here: meaning and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# How a JSON cell is read (`json_rows`).
AS_BOOLEAN, AS_INT, AS_LONG, AS_DOUBLE, AS_TEXT, AS_TIMESTAMP, AS_DATE, AS_SPAN = range(8)
# What a cell turned out to be.
NULL, VALUE_IN, TEXT_PLAIN, TEXT_ESCAPED, NUMBER_TEXT = range(5)
# What a row turned out to be.
ROW_READ, ROW_HARD = range(2)

_MICROS = 1_000_000
_POWERS = 10.0 ** np.arange(23)
_PLAIN = np.array([32 <= byte < 128 and byte not in b'"\\' for byte in range(256)])  # bytes of a text that need no thought


@njit(cache=True, nogil=True)
def _blank(data: Any, at: int, end: int) -> int:
    while at < end and data[at] <= 32 and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@njit(cache=True, nogil=True)
def _hex4(data: Any, at: Any, end: int) -> int:
    if at + 4 > end:
        return -1
    value = 0
    for index in range(4):
        byte = data[at + index]
        if 48 <= byte <= 57:
            value = value * 16 + byte - 48
        elif 65 <= byte <= 70:
            value = value * 16 + byte - 55
        elif 97 <= byte <= 102:
            value = value * 16 + byte - 87
        else:
            return -1
    return value


@njit(cache=True, nogil=True)
def _text(data: Any, start: int, stop: int) -> Any:
    """From after the opening quote: (position of the closing quote or -1, has escapes, has bytes above 127)."""
    escaped = 0
    high = 0
    at, end, one = np.uint64(start), np.uint64(stop), np.uint64(1)  # unsigned, since numba wraps negative indexes: half the time
    while True:
        while at < end and _PLAIN[data[at]]:
            at += one
        if at >= end:
            return -1, escaped, high
        byte = data[at]
        if byte == 34:
            return np.int64(at), escaped, high
        if byte > 127:
            high = 1
        elif byte == 92 and at + one < end:
            escaped = 1
            at += one
            kind = data[at]
            if kind == 117:
                if _hex4(data, np.int64(at) + 1, stop) < 0:
                    return -1, escaped, high
                at += np.uint64(4)
            elif not (kind == 34 or kind == 92 or kind == 47 or kind == 98 or kind == 102 or kind == 110 or kind == 114 or kind == 116):
                return -1, escaped, high
        else:
            return -1, escaped, high
        at += one


@njit(cache=True, nogil=True)
def _number(data: Any, at: int, end: int) -> Any:
    """A JSON number: (digits as an integer, power of ten, position after it or -1, kind, negative).

    Kind 0: an integer that fits; 1: has a fraction or exponent; 2: more digits than 64 bits hold (use its text)."""
    negative = data[at] == 45
    if negative:
        at += 1
    first = at
    mantissa = np.int64(0)
    power = 0
    kind = 0
    while at < end and 48 <= data[at] <= 57:
        if mantissa > 922_337_203_685_477_579:
            kind = 2
        else:
            mantissa = mantissa * 10 + (data[at] - 48)
        at += 1
    if at == first or (data[first] == 48 and at > first + 1):
        return 0, 0, -1, 0, negative
    if at < end and data[at] == 46:
        at += 1
        begin = at
        while at < end and 48 <= data[at] <= 57:
            if kind == 2 or mantissa > 922_337_203_685_477_579:
                kind = 2
            else:
                mantissa = mantissa * 10 + (data[at] - 48)
                power -= 1
            at += 1
        if at == begin:
            return 0, 0, -1, 0, negative
        kind = max(kind, 1)
    if at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        sign = 1
        if at < end and (data[at] == 43 or data[at] == 45):
            sign = -1 if data[at] == 45 else 1
            at += 1
        begin = at
        exponent = 0
        while at < end and 48 <= data[at] <= 57:
            exponent = min(exponent * 10 + (data[at] - 48), 100_000)
            at += 1
        if at == begin:
            return 0, 0, -1, 0, negative
        power += sign * exponent
        kind = max(kind, 1)
    return mantissa, power, at, kind, negative


@njit(cache=True, nogil=True)
def _word(data: Any, at: int, end: int) -> int:
    """Which literal begins here: 0 null, 1 true, 2 false, -1 none."""
    if at + 4 <= end:
        if data[at] == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
            return 0
        if data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
            return 1
        if at + 5 <= end and data[at] == 102 and data[at + 1] == 97 and data[at + 2] == 108 and data[at + 3] == 115 and data[at + 4] == 101:
            return 2
    return -1


@njit(cache=True, nogil=True)
def _name(data: Any, at: int, end: int) -> tuple[int, int]:
    """Over a field's name and its colon: (position after them or -1, has bytes above 127)."""
    if at >= end or data[at] != 34:
        return -1, 0
    close, _, high = _text(data, at + 1, end)
    if close < 0:
        return -1, high
    at = _blank(data, close + 1, end)
    return (at + 1 if at < end and data[at] == 58 else -1), high


@njit(cache=True, nogil=True)
def _skip(data: Any, at: int, end: int) -> tuple[int, int]:
    """Over one value of any kind, checked: (position after it or -1, has bytes above 127). -1 also when nested deeper than 60."""
    kinds = 0  # a bit for each open bracket, the innermost lowest: 1 for an object
    depth = 0
    high = 0
    while True:
        at = _blank(data, at, end)
        if at >= end:
            return -1, high
        byte = data[at]
        if byte == 123 or byte == 91:
            is_object = byte == 123
            at = _blank(data, at + 1, end)
            if at < end and data[at] == (125 if is_object else 93):
                at += 1
            else:
                if depth == 60:
                    return -1, high
                depth += 1
                kinds = (kinds << 1) | (1 if is_object else 0)
                if is_object:
                    at, above = _name(data, at, end)
                    high |= above
                    if at < 0:
                        return -1, high
                continue
        elif byte == 34:
            close, _, above = _text(data, at + 1, end)
            high |= above
            if close < 0:
                return -1, high
            at = close + 1
        elif byte == 45 or 48 <= byte <= 57:
            _, _, at, _, _ = _number(data, at, end)
            if at < 0:
                return -1, high
        else:
            word = _word(data, at, end)
            if word < 0:
                return -1, high
            at += 5 if word == 2 else 4
        while depth > 0:  # after a value: a comma and the next one, or the end of what holds it
            at = _blank(data, at, end)
            if at >= end:
                return -1, high
            byte = data[at]
            if byte == 44:
                at = _blank(data, at + 1, end)
                if kinds & 1:
                    at, above = _name(data, at, end)
                    high |= above
                    if at < 0:
                        return -1, high
                break
            if byte != (125 if kinds & 1 else 93):
                return -1, high
            at += 1
            depth -= 1
            kinds >>= 1
        if depth == 0:
            return at, high


@njit(cache=True, nogil=True)
def utf8(data: Any, at: int, end: int) -> bool:
    """Is data[at:end] UTF-8 (no overlong forms, no surrogates)?"""
    while at < end:
        byte = data[at]
        if byte < 0x80:
            at += 1
            continue
        if 0xC2 <= byte <= 0xDF:
            more, low, high = 1, 0x80, 0xBF
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            low = 0xA0 if byte == 0xE0 else 0x80
            high = 0x9F if byte == 0xED else 0xBF
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            low = 0x90 if byte == 0xF0 else 0x80
            high = 0x8F if byte == 0xF4 else 0xBF
        else:
            return False
        if at + more >= end or data[at + 1] < low or data[at + 1] > high:
            return False
        for index in range(2, more + 1):
            if data[at + index] < 0x80 or data[at + index] > 0xBF:
                return False
        at += more + 1
    return True


@njit(cache=True, nogil=True)
def _digits(data: Any, at: int, end: int, most: int) -> tuple[int, int]:
    """(number made of up to `most` digits, position after them)."""
    value = 0
    stop = min(end, at + most)
    while at < stop and 48 <= data[at] <= 57:
        value = value * 10 + (data[at] - 48)
        at += 1
    return value, at


@njit(cache=True, nogil=True)
def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    if month <= 2:
        year -= 1
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


@njit(cache=True, nogil=True)
def _date(data: Any, at: int, end: int) -> tuple[int, int]:
    """YYYY-MM-DD: (days, position after it), or position -1."""
    year, stop = _digits(data, at, end, 4)
    if stop != at + 4 or stop + 6 > end or data[stop] != 45 or data[stop + 3] != 45:
        return 0, -1
    month, after_month = _digits(data, stop + 1, end, 2)
    day, after_day = _digits(data, stop + 4, end, 2)
    if after_month != stop + 3 or after_day != stop + 6 or month < 1 or month > 12 or day < 1 or year < 1:
        return 0, -1
    longest = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    elif month == 2:
        longest = 29 if (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)) else 28
    return (_days(year, month, day), after_day) if day <= longest else (0, -1)


@njit(cache=True, nogil=True)
def _instant(data: Any, at: int, end: int) -> tuple[int, bool]:
    """An ISO 8601 instant, UTC unless it names its offset: (microseconds, understood)."""
    days, at = _date(data, at, end)
    if at < 0:
        return 0, False
    time_us = days * 86_400 * _MICROS
    if at == end:
        return time_us, True
    if (data[at] != 84 and data[at] != 32) or at + 6 > end or data[at + 3] != 58:
        return 0, False
    hour, after_hour = _digits(data, at + 1, end, 2)
    minute, after_minute = _digits(data, at + 4, end, 2)
    if after_hour != at + 3 or after_minute != at + 6 or hour > 23 or minute > 59:
        return 0, False
    time_us += (hour * 3600 + minute * 60) * _MICROS
    at = after_minute
    if at < end and data[at] == 58:
        second, after = _digits(data, at + 1, end, 2)
        if after != at + 3 or second > 59:
            return 0, False
        time_us += second * _MICROS
        at = after
        if at < end and data[at] == 46:
            fraction, after = _digits(data, at + 1, end, 6)
            size = after - at - 1
            if size == 0:
                return 0, False
            for _ in range(6 - size):
                fraction *= 10
            time_us += fraction
            while after < end and 48 <= data[after] <= 57:  # finer than a microsecond: cut off
                after += 1
            at = after
    if at == end or (data[at] == 90 and at + 1 == end):
        return time_us, True
    if data[at] != 43 and data[at] != 45:
        return 0, False
    hours, after = _digits(data, at + 1, end, 2)
    if after != at + 3:
        return 0, False
    if after < end and data[after] == 58:
        after += 1
    minutes, stop = _digits(data, after, end, 2)
    if stop != end or (stop != after and stop != after + 2) or hours > 18 or minutes > 59:
        return 0, False
    shift_us = (hours * 60 + minutes) * 60 * _MICROS
    return (time_us - shift_us if data[at] == 43 else time_us + shift_us), True


@njit(cache=True, nogil=True, inline="always")
def _number_cell(data: Any, at: int, end: int, how: int, column: int, row: int, ints: Any, doubles: Any, sizes: Any, states: Any) -> Any:
    """Read a number into its cell; returns the position after it, or -1 if this reader should not decide."""
    mantissa, power, after, kind, negative = _number(data, at, end)
    if after < 0:
        return -1
    if how == AS_DOUBLE:
        if kind < 2 and mantissa < (1 << 53) and -22 <= power <= 22:
            value = mantissa * _POWERS[power] if power >= 0 else mantissa / _POWERS[-power]
            doubles[column, row] = -value if negative else value
            states[column, row] = VALUE_IN
        else:
            ints[column, row] = at
            sizes[column, row] = after - at
            states[column, row] = NUMBER_TEXT
        return after
    if how == AS_TEXT:
        ints[column, row] = at
        sizes[column, row] = after - at
        states[column, row] = TEXT_PLAIN
        return after
    if how == AS_TIMESTAMP and kind == 1 and mantissa < (1 << 53) and -22 <= power <= 0 and mantissa < 9_000_000_000_000 * _POWERS[-power]:
        time_us = np.int64(np.rint(mantissa / _POWERS[-power] * _MICROS))
        ints[column, row] = -time_us if negative else time_us
        states[column, row] = VALUE_IN
        return after
    if kind != 0:
        return -1
    value = -mantissa if negative else mantissa
    if how == AS_INT and not -(1 << 31) <= value < (1 << 31):
        return -1
    if how == AS_TIMESTAMP:
        if not -9_000_000_000_000 < value < 9_000_000_000_000:
            return -1
        value *= _MICROS
    elif how != AS_INT and how != AS_LONG:
        return -1
    ints[column, row] = value
    states[column, row] = VALUE_IN
    return after


@njit(cache=True, nogil=True, inline="always")
def _text_cell(data: Any, at: int, end: int, how: int, column: int, row: int, ints: Any, sizes: Any, states: Any) -> tuple[int, int]:
    """Read a quoted text into its cell: (position after it or -1, has bytes above 127)."""
    close, escaped, high = _text(data, at + 1, end)
    if close < 0:
        return -1, high
    if how == AS_TEXT:
        ints[column, row] = at + 1
        sizes[column, row] = close - at - 1
        states[column, row] = TEXT_ESCAPED if escaped else TEXT_PLAIN
        return close + 1, high
    if how == AS_TIMESTAMP and not escaped:
        time_us, understood = _instant(data, at + 1, close)
        if understood:
            ints[column, row] = time_us
            states[column, row] = VALUE_IN
            return close + 1, high
    if how == AS_DATE and not escaped:
        days, after = _date(data, at + 1, close)
        if after == close:
            ints[column, row] = days
            states[column, row] = VALUE_IN
            return close + 1, high
    return -1, high


@njit(cache=True, nogil=True, inline="always")
def _word_cell(data: Any, at: int, end: int, how: int, column: int, row: int, ints: Any, sizes: Any, states: Any) -> int:
    """Read null, true or false into its cell; returns the position after it, or -1 if this reader should not decide."""
    word = _word(data, at, end)
    after = at + (5 if word == 2 else 4)
    if word == 0:
        states[column, row] = NULL
    elif word > 0 and how == AS_BOOLEAN:
        ints[column, row] = 1 if word == 1 else 0
        states[column, row] = VALUE_IN
    elif word > 0 and how == AS_TEXT:
        ints[column, row] = at
        sizes[column, row] = after - at
        states[column, row] = TEXT_PLAIN
    else:
        return -1
    return after


@njit(cache=True, nogil=True, inline="always")
def _column(data: Any, at: int, size: int, guess: int, names: Any, name_ends: Any) -> int:
    """The column whose name is data[at:at + size], or -1. Tries `guess` first: fields mostly come in the schema's order."""
    count = name_ends.shape[0] - 1
    for turn in range(count):
        column = guess + turn
        if column >= count:
            column -= count
        begin = name_ends[column]
        if name_ends[column + 1] - begin != size:
            continue
        same = True
        for index in range(size):
            if names[begin + index] != data[at + index]:
                same = False
                break
        if same:
            return column
    return -1


@njit(cache=True, nogil=True, inline="always")
def _json_row(
    data: Any, at: int, end: int, row: int, names: Any, name_ends: Any, hows: Any, ints: Any, doubles: Any, sizes: Any, states: Any
) -> bool:
    """Read one JSON object into its cells. False: this reader should not decide (not an object, an odd type, a rare form)."""
    begin = at
    columns = hows.shape[0]
    high = 0
    guess = 0
    at = _blank(data, at, end)
    if at >= end or data[at] != 123:
        return False
    at = _blank(data, at + 1, end)
    if at < end and data[at] == 125:
        return _blank(data, at + 1, end) == end
    while True:
        if at >= end or data[at] != 34:
            return False
        close, escaped, above = _text(data, at + 1, end)
        high |= above
        if close < 0 or escaped:
            return False
        column = _column(data, at + 1, close - at - 1, guess, names, name_ends)
        at = _blank(data, close + 1, end)
        if at >= end or data[at] != 58:
            return False
        at = _blank(data, at + 1, end)
        if at >= end:
            return False
        how = hows[column] if column >= 0 else -1
        byte = data[at]
        if column < 0:
            at, above = _skip(data, at, end)
            high |= above
        elif byte == 34 and how != AS_SPAN:
            at, above = _text_cell(data, at, end, how, column, row, ints, sizes, states)
            high |= above
        elif byte == 91 and how == AS_SPAN:
            ints[column, row] = at
            after, above = _skip(data, at, end)
            high |= above
            if after < 0:
                return False
            sizes[column, row] = after - at
            states[column, row] = TEXT_PLAIN
            at = after
        elif (byte == 45 or 48 <= byte <= 57) and how != AS_SPAN:
            at = _number_cell(data, at, end, how, column, row, ints, doubles, sizes, states)
        else:
            at = _word_cell(data, at, end, how, column, row, ints, sizes, states)
        if at < 0:
            return False
        at = _blank(data, at, end)
        if at >= end:
            return False
        if data[at] == 125:
            if _blank(data, at + 1, end) != end:
                return False
            return utf8(data, begin, end) if high else True
        if data[at] != 44:
            return False
        at = _blank(data, at + 1, end)
        if column >= 0:
            guess = column + 1 if column + 1 < columns else 0


@njit(cache=True, nogil=True)
def json_rows(
    data: Any,
    positions: Any,
    lengths: Any,
    names: Any,
    name_ends: Any,
    hows: Any,
    ints: Any,
    doubles: Any,
    sizes: Any,
    states: Any,
    rows: Any,
) -> int:
    """Read every value as a JSON object into column-major cells (column, row). Returns how many rows are hard.

    `ints` and `doubles` are two views of the same memory. A hard row is one that this reader leaves to the full reader:
    its cells mean nothing. Missing fields stay NULL (`states` comes zeroed)."""
    hard = 0
    for row in range(positions.shape[0]):
        at = positions[row]
        size = lengths[row]
        if size >= 0 and _json_row(data, at, at + size, row, names, name_ends, hows, ints, doubles, sizes, states):
            rows[row] = ROW_READ
        else:
            rows[row] = ROW_HARD
            hard += 1
    return hard


@njit(cache=True, nogil=True)
def _unescape(data: Any, at: int, end: int, out: Any, to: int) -> int:
    """Copy a JSON text without its quotes, resolving escapes; returns the end in `out`, or -1 for a wrong escape.

    The result is never longer than the text."""
    while at < end:
        byte = data[at]
        if byte != 92:
            out[to] = byte
            at += 1
            to += 1
            continue
        if at + 1 >= end:
            return -1
        kind = data[at + 1]
        at += 2
        if kind == 117:
            code = _hex4(data, at, end)
            at += 4
            if 0xD800 <= code < 0xDC00 and at + 6 <= end and data[at] == 92 and data[at + 1] == 117:
                low = _hex4(data, at + 2, end)
                if not 0xDC00 <= low < 0xE000:
                    return -1
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                at += 6
            elif code < 0 or 0xD800 <= code < 0xE000:
                return -1
            if code < 0x80:
                out[to] = code
                to += 1
            elif code < 0x800:
                out[to] = 0xC0 | (code >> 6)
                out[to + 1] = 0x80 | (code & 63)
                to += 2
            elif code < 0x10000:
                out[to] = 0xE0 | (code >> 12)
                out[to + 1] = 0x80 | ((code >> 6) & 63)
                out[to + 2] = 0x80 | (code & 63)
                to += 3
            else:
                out[to] = 0xF0 | (code >> 18)
                out[to + 1] = 0x80 | ((code >> 12) & 63)
                out[to + 2] = 0x80 | ((code >> 6) & 63)
                out[to + 3] = 0x80 | (code & 63)
                to += 4
            continue
        if kind == 34 or kind == 92 or kind == 47:
            out[to] = kind
        elif kind == 110:
            out[to] = 10
        elif kind == 116:
            out[to] = 9
        elif kind == 114:
            out[to] = 13
        elif kind == 98:
            out[to] = 8
        elif kind == 102:
            out[to] = 12
        else:
            return -1
        to += 1
    return to


@njit(cache=True, nogil=True)
def gather_text(data: Any, positions: Any, lengths: Any, states: Any, rows: Any, out: Any, ends: Any) -> int:
    """Like `gather`, for the texts of one JSON column; a text with a wrong escape makes its row hard. Returns how many."""
    to = 0
    ends[0] = 0
    hard = 0
    for row in range(positions.shape[0]):
        state = states[row]
        if rows[row] == ROW_READ and (state == TEXT_PLAIN or state == TEXT_ESCAPED):  # noqa: SIM109
            at = positions[row]
            size = lengths[row]
            if state == TEXT_PLAIN:
                for index in range(size):
                    out[to + index] = data[at + index]
                to += size
            else:
                after = _unescape(data, at, at + size, out, to)
                if after < 0:
                    rows[row] = ROW_HARD
                    hard += 1
                else:
                    to = after
        ends[row + 1] = to
    return hard


@njit(cache=True, nogil=True)
def _put_digits(out: Any, at: int, value: int, count: int) -> None:
    for index in range(count):
        out[at + count - 1 - index] = 48 + value % 10
        value //= 10


@njit(cache=True, nogil=True)
def put_instants(times_us: Any, digits: int, out: Any) -> None:
    """Write each time as `2026-01-31T12:34:56.789Z` with so many digits after the point, 21 + digits bytes each. Years 0 to 9999 only."""
    width = 21 + digits
    scale = 10 ** (6 - digits)
    for row in range(times_us.shape[0]):
        at = row * width
        days = times_us[row] // (86_400 * _MICROS)
        rest = times_us[row] - days * 86_400 * _MICROS
        # Days to a date of the proleptic Gregorian calendar, by eras of 400 years that begin in March.
        shifted = days + 719_468
        era = shifted // 146_097
        day_of_era = shifted - era * 146_097
        year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
        day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
        month = (5 * day_of_year + 2) // 153
        _put_digits(out, at + 8, day_of_year - (153 * month + 2) // 5 + 1, 2)
        month = month + 3 if month < 10 else month - 9
        _put_digits(out, at, year_of_era + era * 400 + (1 if month <= 2 else 0), 4)
        _put_digits(out, at + 5, month, 2)
        _put_digits(out, at + 11, rest // (3_600 * _MICROS), 2)
        _put_digits(out, at + 14, rest // (60 * _MICROS) % 60, 2)
        _put_digits(out, at + 17, rest // _MICROS % 60, 2)
        _put_digits(out, at + 20, rest % _MICROS // scale, digits)
        out[at + 4] = out[at + 7] = 45
        out[at + 10] = 84
        out[at + 13] = out[at + 16] = 58
        out[at + 19] = 46
        out[at + width - 1] = 90

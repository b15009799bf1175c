"""A hand parser for the common shape of a JSON event, over the joined bytes of a whole micro-batch.

It accepts a line only if it is sure to read it as a strict JSON parser and the rules of the door would: plain strings
(any valid UTF-8, no escapes), numbers of at most 15 digits without exponent or sign, known fields at most once, unknown
fields with a scalar value. Every other line, good or bad, is left to the caller (`UNSURE`). No Python object per event.

Fields: user_id, item_id (string or integer), label, weight, timestamp, and features, an object of scalars and lists of
scalars, of which only the place is told: `native.json_features` reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from native.hashing import key_and_check
from native.memory import read8, read32, read64, trailing_zeros

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]

UNSURE, USABLE, BLANK, REFUSED = 0, 1, 2, 3
"""What a line turned out to be; the parser leaves it to its caller to refuse."""

PADDING = 16
"""Bytes the data must have behind the last record: words are loaded whole."""

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_LOW40, _LOW48 = np.uint64((1 << 40) - 1), np.uint64((1 << 48) - 1)


def _word(text: bytes) -> Any:
    return np.uint64(int.from_bytes(text, "little"))


_USER_ID, _ITEM_ID, _TIMESTAM = _word(b'user_id"'), _word(b'item_id"'), _word(b"timestam")
_LABEL, _WEIGHT, _FEATURES = _word(b"label"), _word(b"weight"), _word(b"features")
_TRUE, _FALS, _NULL = _word(b"true"), _word(b"fals"), _word(b"null")
_USER, _ITEM, _LABELED, _WEIGHTED, _TIMED, _OTHER, _FEATURED = 1, 2, 4, 8, 16, 32, 64
_POW10 = np.array([10.0**k for k in range(16)])
_MAX_DIGITS = 15  # below 2^53, so mantissa / 10^k is correctly rounded (Clinger 1990, the fast path)
_NEVER: Any = np.int64(-(1 << 63))


@njit(cache=True)
def _space(p: int, end: int) -> Any:
    while p < end:
        c = read8(p)
        if c != 32 and c != 9 and c != 13:  # noqa: PLR1714 - numba compiles `in` to a loop
            break
        p += 1
    return p


@njit(cache=True)
def _between(p: int, low: int, high: int) -> Any:
    c = np.int64(read8(p))
    return low <= c <= high


@njit(cache=True)
def _utf8(p: int, end: int) -> Any:
    """Bytes of the well-formed sequence at p (RFC 3629: no overlong forms, no surrogates), or 0."""
    c = np.int64(read8(p))
    if 0xC2 <= c <= 0xDF:
        return 2 if p + 2 <= end and _between(p + 1, 0x80, 0xBF) else 0
    if 0xE0 <= c <= 0xEF:
        low = 0xA0 if c == 0xE0 else 0x80
        high = 0x9F if c == 0xED else 0xBF
        return 3 if p + 3 <= end and _between(p + 1, low, high) and _between(p + 2, 0x80, 0xBF) else 0
    if 0xF0 <= c <= 0xF4:
        low = 0x90 if c == 0xF0 else 0x80
        high = 0x8F if c == 0xF4 else 0xBF
        if p + 4 <= end and _between(p + 1, low, high) and _between(p + 2, 0x80, 0xBF) and _between(p + 3, 0x80, 0xBF):
            return 4
    return 0


@njit(cache=True)
def _string(p: int, end: int) -> Any:
    """Address of the quote that closes the string begun before p, or 0 if unsure (escape, control, bad UTF-8)."""
    while p < end:
        word = read64(p)
        quote, slash = word ^ _QUOTES, word ^ _BACKSLASHES
        hits = ((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((word - _SPACES) & ~word) | word
        hits &= _HIGHS
        if hits == 0:
            p += 8
            continue
        p += trailing_zeros(hits) >> 3  # borrows make false hits only above the lowest true one
        if p >= end:
            return 0
        c: Any = np.int64(read8(p))
        if c == 34:
            return p
        if c < 0x80:
            return 0
        size = _utf8(p, end)
        if size == 0:
            return 0
        p += size
    return 0


@njit(cache=True)
def _digits(p: int, end: int) -> Any:
    while p < end and np.int64(read8(p)) - 48 >= 0 and np.int64(read8(p)) - 48 <= 9:
        p += 1
    return p


@njit(cache=True)
def _integer(p: int, q: int) -> Any:
    """Value of the digits in [p, q); at most 18 of them."""
    value: Any = np.int64(0)
    while p < q:
        value = value * 10 + (np.int64(read8(p)) - 48)
        p += 1
    return value


@njit(cache=True)
def _number(p: int, end: int) -> Any:
    """(address behind the plain decimal number at p, its value), or (0, 0) if unsure."""
    q = _digits(p, end)
    whole = q - p
    if whole == 0 or whole > _MAX_DIGITS or (whole > 1 and read8(p) == 48):
        return 0, 0.0
    mantissa = _integer(p, q)
    if q < end and read8(q) == 46:
        f = _digits(q + 1, end)
        digits = f - q - 1
        if digits == 0 or whole + digits > _MAX_DIGITS:
            return 0, 0.0
        mantissa = mantissa * np.int64(10) ** digits + _integer(q + 1, f)
        return f, mantissa / _POW10[digits]
    return q, float(mantissa)


@njit(cache=True)
def _literal(p: int, end: int) -> Any:
    """(address behind, 1 true, 0 false, 2 null), or (0, 0)."""
    if p + 4 <= end:
        word = read32(p)
        if word == _TRUE:
            return p + 4, 1
        if word == _NULL:
            return p + 4, 2
        if word == _FALS and p + 5 <= end and read8(p + 4) == 101:
            return p + 5, 0
    return 0, 0


@njit(cache=True)
def _two(p: int) -> Any:
    """Value of two digits, or -1."""
    a, b = np.int64(read8(p)) - 48, np.int64(read8(p + 1)) - 48
    return a * 10 + b if 0 <= a <= 9 and 0 <= b <= 9 else -1


@njit(cache=True)
def _days(year: int, month: int, day: int) -> Any:
    """Days since 1970-01-01 in the proleptic Gregorian calendar, year > 0 (H. Hinnant, days_from_civil)."""
    y = year - 1 if month <= 2 else year
    era = y // 400
    yoe = y - era * 400
    doy = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + yoe * 365 + yoe // 4 - yoe // 100 + doy - 719468


@njit(cache=True)
def _iso8601(p: int, q: int) -> Any:
    """Milliseconds of `YYYY-MM-DDTHH:MM:SS[.f{1,9}]Z` in [p, q); -1 if unsure."""
    size = q - p
    if size < 20 or size > 30 or read8(q - 1) != 90 or read8(p + 4) != 45 or read8(p + 7) != 45:
        return -1
    if read8(p + 10) != 84 or read8(p + 13) != 58 or read8(p + 16) != 58:
        return -1
    century, year = _two(p), _two(p + 2)
    month, day, hour, minute, second = _two(p + 5), _two(p + 8), _two(p + 11), _two(p + 14), _two(p + 17)
    if century < 0 or year < 0 or month < 1 or month > 12 or day < 1 or hour < 0 or minute < 0 or second < 0:
        return -1
    year += century * 100
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 31
    if month == 2:
        last = 29 if leap else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:  # noqa: PLR1714
        last = 30
    if year == 0 or day > last or hour > 23 or minute > 59 or second > 59:
        return -1
    millis: Any = 0
    if size > 20:
        if size == 21 or read8(p + 19) != 46 or _digits(p + 20, q) != q - 1:
            return -1
        for k in range(3):
            millis = millis * 10 + (np.int64(read8(p + 20 + k)) - 48 if p + 20 + k < q - 1 else 0)
    return (((_days(year, month, day) * 24 + hour) * 60 + minute) * 60 + second) * 1000 + millis


@njit(cache=True)
def _scalar(p: int, end: int) -> Any:
    """Address behind the string, number or literal at p, or 0 if unsure. Numbers may have a minus."""
    if p >= end:
        return 0
    c = np.int64(read8(p))
    if c == 34:
        q = _string(p + 1, end)
        return q + 1 if q else 0
    if c == 45 or 48 <= c <= 57:
        q, _ = _number(p + 1 if c == 45 else p, end)
        return q
    q, _ = _literal(p, end)
    return q


@njit(cache=True)
def _flat_object(p: int, end: int) -> Any:
    """Address behind the object at p, whose members are scalars or lists of scalars; 0 if unsure."""
    p = _space(p + 1, end)
    if p < end and read8(p) == 125:
        return p + 1
    while True:
        if p >= end or read8(p) != 34:
            return 0
        q = _string(p + 1, end)
        if q == 0:
            return 0
        p = _space(q + 1, end)
        if p >= end or read8(p) != 58:
            return 0
        p = _space(p + 1, end)
        if p < end and read8(p) == 91:
            p = _space(p + 1, end)
            first = True
            while True:
                if p >= end:
                    return 0
                if first and read8(p) == 93:
                    break
                first = False
                p = _scalar(p, end)
                if p == 0:
                    return 0
                p = _space(p, end)
                if p >= end:
                    return 0
                if read8(p) == 93:
                    break
                if read8(p) != 44:
                    return 0
                p = _space(p + 1, end)
            p += 1
        else:
            p = _scalar(p, end)
            if p == 0:
                return 0
        p = _space(p, end)
        if p >= end:
            return 0
        if read8(p) == 125:
            return p + 1
        if read8(p) != 44:
            return 0
        p = _space(p + 1, end)


@njit(cache=True)
def _event(p: int, end: int) -> Any:
    """The event in the line at p.

    Returns (address behind the object or 0, fields seen, user at, size, item at, size, label, weight, time, features
    at, size). Ids and numbers are not yet held against the door's limits.
    """
    failed = (0, 0, 0, 0, 0, 0, 1.0, 1.0, _NEVER, 0, 0)
    seen, user_at, user_size, item_at, item_size, features_at, features_size = 0, 0, 0, 0, 0, 0, 0
    label, weight, time_ms = 1.0, 1.0, _NEVER
    p = _space(p, end)
    if p >= end or read8(p) != 123:
        return failed
    p = _space(p + 1, end)
    while True:
        if p >= end or read8(p) != 34:
            return failed
        name = p + 1
        q = _string(name, end)
        if q == 0:
            return failed
        size = q - name
        word = read64(name)
        field = _OTHER
        if size == 7:
            if word == _USER_ID:
                field = _USER
            elif word == _ITEM_ID:
                field = _ITEM
        elif size == 5:
            if word & _LOW40 == _LABEL:
                field = _LABELED
        elif size == 6:
            if word & _LOW48 == _WEIGHT:
                field = _WEIGHTED
        elif size == 9 and word == _TIMESTAM and read8(name + 8) == 112:
            field = _TIMED
        elif size == 8 and word == _FEATURES:
            field = _FEATURED
        if field != _OTHER and seen & field:
            return failed
        seen |= field
        p = _space(q + 1, end)
        if p >= end or read8(p) != 58:
            return failed
        p = _space(p + 1, end)
        if p >= end:
            return failed
        c = np.int64(read8(p))
        if c == 34:
            at = p + 1
            q = _string(at, end)
            if q == 0:
                return failed
            p = q + 1
            if field == _USER:
                user_at, user_size = at, q - at
            elif field == _ITEM:
                item_at, item_size = at, q - at
            elif field == _TIMED:
                time_ms = _iso8601(at, q)
                if time_ms < 0:
                    return failed
            elif field != _OTHER:
                return failed
        elif 48 <= c <= 57:
            if field <= _ITEM or field == _TIMED:
                q = _digits(p, end)
                if q - p > 18 or (c == 48 and q - p > 1):
                    return failed
                if field == _USER:
                    user_at, user_size = p, q - p
                elif field == _ITEM:
                    item_at, item_size = p, q - p
                else:
                    time_ms = _integer(p, q)
            else:
                q, value = _number(p, end)
                if q == 0:
                    return failed
                if field == _LABELED:
                    label = value
                elif field == _WEIGHTED:
                    weight = value
                elif field == _FEATURED:
                    return failed
            p = q
        elif c == 123 and field == _FEATURED:
            q = _flat_object(p, end)
            if q == 0:
                return failed
            features_at, features_size = p, q - p
            p = q
        else:
            q, literal = _literal(p, end)
            if q == 0 or field <= _ITEM or (field in (_WEIGHTED, _TIMED, _FEATURED) and literal != 2):
                return failed
            if field == _LABELED and literal != 2:
                label = float(literal)
            p = q
        p = _space(p, end)
        if p >= end:
            return failed
        c = np.int64(read8(p))
        if c == 125:
            p = _space(p + 1, end)
            break
        if c != 44:
            return failed
        p = _space(p + 1, end)
    if seen & (_USER | _ITEM) != _USER | _ITEM or (p < end and read8(p) != 10):
        return failed
    return p, seen, user_at, user_size, item_at, item_size, label, weight, time_ms, features_at, features_size


@njit(cache=True, nogil=True)
def parse_lines(
    data: U8,
    starts: I64,
    stops: I64,
    produced_ms: I64,
    latest_ms: I64,
    earliest_ms: int,
    max_id_bytes: int,
    max_label: float,
    max_weight: float,
    record_lines: I64,
    lines: tuple[I64, I64, I64, I64, U8, U8],
    user: tuple[I64, I64, U64, U32],
    item: tuple[I64, I64, U64, U32],
    label: F32,
    weight: F32,
    time_ms: I64,
    features: tuple[I64, I64],
) -> int:
    """Read every line of the records data[starts[r]:stops[r]]; returns the number of lines.

    data (bytes,) u8 with PADDING bytes behind the last stop; starts, stops, produced_ms, latest_ms (r,) i64. The rest
    is output: record_lines (r,) lines of each record; then per line, with room for as many as there are newlines plus
    records, lines = (start, stop, record, number in the record, status, had unknown fields), user and item = (start,
    size, key, check bits), features = (start, size), size 0 for none. A newline at the end of a record opens no line. A
    line that isn't USABLE leaves its other outputs untouched.
    """
    line_start, line_stop, line_record, line_number, status, unknown = lines
    user_start, user_bytes, user_key, user_check = user
    item_start, item_bytes, item_key, item_check = item
    base = data.ctypes.data
    room = len(status)
    n = 0
    for r in range(len(starts)):
        p, end, number = base + starts[r], base + stops[r], 0
        while p < end and n < room:
            begin = p
            p, seen, user_at, user_size, item_at, item_size, y, w, t, features_at, features_size = _event(begin, end)
            state = USABLE
            if p == 0:
                state = UNSURE
                p = _space(begin, end)
                if p >= end or read8(p) == 10:
                    state = BLANK
                while p < end and read8(p) != 10:
                    p += 1
            if state == USABLE:
                if t == _NEVER:
                    t = produced_ms[r]
                small = np.float32(y)
                light = np.float32(w)
                if (
                    user_size < 1
                    or user_size > max_id_bytes
                    or item_size < 1
                    or item_size > max_id_bytes
                    or t < earliest_ms
                    or t > latest_ms[r]
                    or y > max_label
                    or w > max_weight
                    or light <= 0.0
                    or (y > 0.0 and small == 0.0)
                ):
                    state = UNSURE
                else:
                    user_start[n], user_bytes[n] = user_at - base, user_size
                    user_key[n], user_check[n] = key_and_check(user_at, user_size)
                    item_start[n], item_bytes[n] = item_at - base, item_size
                    item_key[n], item_check[n] = key_and_check(item_at, item_size)
                    label[n], weight[n], time_ms[n] = small, light, t
                    unknown[n] = (seen & _OTHER) != 0
                    features[0][n], features[1][n] = features_at - base, features_size
            line_start[n], line_stop[n], line_record[n], line_number[n] = begin - base, p - base, r, number
            status[n] = state
            n += 1
            number += 1
            p += 1
        record_lines[r] = number
    return n


@njit(cache=True, nogil=True)
def gather(data: U8, extra: U8, starts: I64, offsets: I64, out: U8) -> None:
    """out[offsets[i]:offsets[i + 1]] = that many bytes from starts[i] on, of `data` with `extra` laid behind it.

    An element lies wholly in one of the two. starts (n,), offsets (n + 1,) from 0, out (offsets[n],).
    """
    split = len(data)
    for i in range(len(starts)):
        at, to, size = starts[i], offsets[i], offsets[i + 1] - offsets[i]
        if at >= split:
            for k in range(size):
                out[to + k] = extra[at - split + k]
        else:
            for k in range(size):
                out[to + k] = data[at + k]

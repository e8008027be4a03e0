"""The kernels' compiled loops: grouping, the hash index, scatter and fold.

Everything that would be a Python loop per record and that numpy has no verb for is here, compiled by numba on first use and
cached on disk. Only arrays go in and come out. This is the one module of the package that imports numba (a second of
import), so it is itself imported where a kernel starts to work, never by the plan."""

from __future__ import annotations

import numpy as np
from numba import njit

_EMPTY = -1


@njit(cache=True, inline="always")
def _mix(a, b, c):  # type: ignore[no-untyped-def]
    h = (
        np.uint64(a) * np.uint64(0x9E3779B97F4A7C15)
        ^ np.uint64(b) * np.uint64(0xC2B2AE3D27D4EB4F)
        ^ np.uint64(c) * np.uint64(0x165667B19E3779F9)
    )
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    return h


@njit(cache=True)
def group_pairs(a, b):  # type: ignore[no-untyped-def]
    """Number the different pairs (a, b) by first appearance: (number of each row, first row of each number)."""
    rows = a.size
    bits = 4
    while (1 << bits) < rows * 2:
        bits += 1
    mask = np.uint64((1 << bits) - 1)
    table = np.full(1 << bits, _EMPTY, np.int64)
    number = np.empty(rows, np.int64)
    first = np.empty(rows, np.int64)
    groups = 0
    for row in range(rows):
        at = _mix(a[row], b[row], 0) & mask
        while True:
            group = table[at]
            if group == _EMPTY:
                table[at] = groups
                first[groups] = row
                number[row] = groups
                groups += 1
                break
            other = first[group]
            if a[other] == a[row] and b[other] == b[row]:
                number[row] = group
                break
            at = (at + np.uint64(1)) & mask
    return number, first[:groups].copy()


@njit(cache=True)
def index_find(head, link, keys, starts, ends, key, start, end):  # type: ignore[no-untyped-def]
    """The slot of each (key, start, end), or -1. Chains of slots hang on buckets."""
    mask = np.uint64(head.size - 1)
    found = np.empty(key.size, np.int64)
    for i in range(key.size):
        slot = head[_mix(key[i], start[i], end[i]) & mask]
        while slot >= 0 and not (keys[slot] == key[i] and starts[slot] == start[i] and ends[slot] == end[i]):
            slot = link[slot]
        found[i] = slot
    return found


@njit(cache=True)
def index_add(head, link, keys, starts, ends, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(head.size - 1)
    for slot in slots:
        bucket = _mix(keys[slot], starts[slot], ends[slot]) & mask
        link[slot] = head[bucket]
        head[bucket] = slot


@njit(cache=True)
def index_remove(head, link, keys, starts, ends, slots):  # type: ignore[no-untyped-def]
    mask = np.uint64(head.size - 1)
    for slot in slots:
        bucket = _mix(keys[slot], starts[slot], ends[slot]) & mask
        at = head[bucket]
        if at == slot:
            head[bucket] = link[slot]
            continue
        while link[at] != slot:
            at = link[at]
        link[at] = link[slot]


@njit(cache=True)
def scatter_sum_float(group, values, weight, total, count):  # type: ignore[no-untyped-def]
    """Weight is 1 or a sign, and 0 for a null."""
    for row in range(group.size):
        w = weight[row]
        if w != 0:
            total[group[row]] += w * values[row]
            count[group[row]] += w


@njit(cache=True)
def scatter_sum_int(group, values, weight, total, count):  # type: ignore[no-untyped-def]
    """Whole numbers; True if a total left the range of 64 bits."""
    overflow = False
    for row in range(group.size):
        w = weight[row]
        if w != 0:
            before = total[group[row]]
            change = w * values[row]
            after = before + change
            overflow = overflow or ((before ^ after) & (change ^ after)) < 0
            total[group[row]] = after
            count[group[row]] += w
    return overflow


@njit(cache=True)
def scatter_count(group, weight, count):  # type: ignore[no-untyped-def]
    for row in range(group.size):
        count[group[row]] += weight[row]


@njit(cache=True)
def scatter_least(group, values, weight, least, count):  # type: ignore[no-untyped-def]
    """NaN counts as greater than every number, as in Spark; `least` begins as NaN or the greatest integer."""
    for row in range(group.size):
        if weight[row] != 0:
            g = group[row]
            if count[g] == 0 or values[row] < least[g] or least[g] != least[g]:
                least[g] = values[row]
            count[g] += 1


@njit(cache=True)
def scatter_greatest(group, values, weight, greatest, count):  # type: ignore[no-untyped-def]
    for row in range(group.size):
        if weight[row] != 0:
            g = group[row]
            if count[g] == 0 or values[row] > greatest[g] or values[row] != values[row]:
                greatest[g] = values[row]
            count[g] += 1


@njit(cache=True)
def scatter_moments(group, values, weight, count, mean, squares):  # type: ignore[no-untyped-def]
    """Welford's update: count, mean and sum of squared deviations stay accurate for large means."""
    for row in range(group.size):
        if weight[row] != 0:
            g = group[row]
            count[g] += 1
            step = values[row] - mean[g]
            mean[g] += step / count[g]
            squares[g] += step * (values[row] - mean[g])


@njit(cache=True)
def scatter_pick(group, order, sign, chosen):  # type: ignore[no-untyped-def]
    """Per group the row that is least (sign 1) or greatest (sign -1) in `order` (columns by significance)."""
    for row in range(group.size):
        g = group[row]
        best = chosen[g]
        if best < 0 or _before(order, row, best, sign):
            chosen[g] = row


@njit(cache=True, inline="always")
def _before(order, a, b, sign):  # type: ignore[no-untyped-def]
    for column in range(order.shape[0]):
        if order[column, a] != order[column, b]:
            return (order[column, a] < order[column, b]) == (sign > 0)
    return False


@njit(cache=True)
def fold_pick(order, sign, low, high):  # type: ignore[no-untyped-def]
    """Per range [low, high) the row that is first or last in `order`."""
    chosen = np.empty(low.size, np.int64)
    for i in range(low.size):
        best = low[i]
        for row in range(low[i] + 1, high[i]):
            if _before(order, row, best, sign):
                best = row
        chosen[i] = best
    return chosen


ADD, LEAST, GREATEST = 0, 1, 2


@njit(cache=True, inline="always")
def _combine(verb, a, b):  # type: ignore[no-untyped-def]
    if verb == 0:
        return a + b
    if verb == 1:
        return b if (b < a or a != a) else a
    return b if (b > a or b != b) else a


@njit(cache=True)
def fold(verb, values, low, high):  # type: ignore[no-untyped-def]
    """Combine values[low:high] for ranges that only move forward: two stacks, so each value is combined a constant number
    of times however much the ranges overlap. Ranges are not empty."""
    result = np.empty(low.size, values.dtype)
    suffix = np.empty(values.size, values.dtype)
    middle = 0
    end = 0
    back = values[0] if values.size else values.dtype.type(0)
    for i in range(low.size):
        if low[i] >= middle:  # the front stack is used up: turn what is in range over
            middle = high[i]
            end = high[i]
            suffix[middle - 1] = values[middle - 1]
            for at in range(middle - 2, low[i] - 1, -1):
                suffix[at] = _combine(verb, values[at], suffix[at + 1])
            result[i] = suffix[low[i]]
            continue
        while end < high[i]:
            back = values[end] if end == middle else _combine(verb, back, values[end])
            end += 1
        result[i] = suffix[low[i]] if end == middle else _combine(verb, suffix[low[i]], back)
    return result


@njit(cache=True)
def fold_moments(count, mean, squares, low, high):  # type: ignore[no-untyped-def]
    """Chan's merge of (count, mean, squared deviations) over each range [low, high)."""
    out = np.zeros((3, low.size))
    for i in range(low.size):
        n, m, s = 0.0, 0.0, 0.0
        for row in range(low[i], high[i]):
            other = count[row]
            if other > 0:
                step = mean[row] - m
                both = n + other
                m += step * other / both
                s += squares[row] + step * step * n * other / both
                n = both
        out[0, i] = n
        out[1, i] = m
        out[2, i] = s
    return out


@njit(cache=True)
def windows_of_slices(key, start, size, every, offset, before, after):  # type: ignore[no-untyped-def]
    """The windows that end in (before, after] and hold a slice. Slices come sorted by (key, start); `before` and `after`
    are given per slice (equal within a key). Gives (key, start of window, low, high): its slices are [low, high)."""
    total = 0
    keys = np.empty(0, np.int64)
    starts = np.empty(0, np.int64)
    lows = np.empty(0, np.int64)
    highs = np.empty(0, np.int64)
    for fill in range(2):
        if fill:
            keys = np.empty(total, np.int64)
            starts = np.empty(total, np.int64)
            lows = np.empty(total, np.int64)
            highs = np.empty(total, np.int64)
        total = 0
        first = 0
        while first < key.size:
            last = first
            while last < key.size and key[last] == key[first]:
                last += 1
            # The first window (by number) that holds the first slice, and the first that ends after `before`.
            number = (start[first] - offset - size) // every + 1
            number = max(number, (before[first] - offset - size) // every + 1)
            final = (after[first] - offset - size) // every
            low = first
            high = first
            while number <= final:
                begin = offset + number * every
                while low < last and start[low] < begin:
                    low += 1
                if low == last:
                    break
                if start[low] >= begin + size:  # a stretch without slices
                    number = (start[low] - offset - size) // every + 1
                    continue
                high = max(high, low)
                while high < last and start[high] < begin + size:
                    high += 1
                if fill:
                    keys[total] = key[first]
                    starts[total] = begin
                    lows[total] = low
                    highs[total] = high
                total += 1
                number += 1
            first = last
    return keys, starts, lows, highs


@njit(cache=True)
def clusters(key, start, end):  # type: ignore[no-untyped-def]
    """Number the runs of overlapping intervals, given sorted by (key, start). Intervals that touch do not overlap."""
    number = np.empty(key.size, np.int64)
    current = -1
    reach = 0
    for i in range(key.size):
        if i == 0 or key[i] != key[i - 1] or start[i] >= reach:
            current += 1
            reach = end[i]
        else:
            reach = max(reach, end[i])
        number[i] = current
    return number


@njit(cache=True)
def chain_gather(head, link, keys):  # type: ignore[no-untyped-def]
    """All slots in the chains of some keys."""
    total = 0
    for key in keys:
        slot = head[key]
        while slot >= 0:
            total += 1
            slot = link[slot]
    out = np.empty(total, np.int64)
    total = 0
    for key in keys:
        slot = head[key]
        while slot >= 0:
            out[total] = slot
            total += 1
            slot = link[slot]
    return out


@njit(cache=True)
def chain_add(head, link, key, slots):  # type: ignore[no-untyped-def]
    for i in range(slots.size):
        link[slots[i]] = head[key[i]]
        head[key[i]] = slots[i]


@njit(cache=True)
def chain_remove(head, link, key, slots):  # type: ignore[no-untyped-def]
    for i in range(slots.size):
        slot = slots[i]
        at = head[key[i]]
        if at == slot:
            head[key[i]] = link[slot]
            continue
        while link[at] != slot:
            at = link[at]
        link[at] = link[slot]


@njit(cache=True)
def number_rows(key, counter):  # type: ignore[no-untyped-def]
    """The running number of each row among the rows of its key; `counter` (per key) moves on."""
    number = np.empty(key.size, np.int64)
    for row in range(key.size):
        number[row] = counter[key[row]]
        counter[key[row]] += 1
    return number


@njit(cache=True)
def number_deltas(key, value, valid, threshold, current, anchor, anchored):  # type: ignore[no-untyped-def]
    """The number of the delta window of each row: a new one begins when the value is `threshold` or more from the anchor."""
    number = np.empty(key.size, np.int64)
    for row in range(key.size):
        k = key[row]
        if valid[row]:
            if not anchored[k]:
                anchor[k] = value[row]
                anchored[k] = True
            elif abs(value[row] - anchor[k]) >= threshold:
                anchor[k] = value[row]
                current[k] += 1
        number[row] = current[k]
    return number


@njit(cache=True)
def number_punctuations(key, ends, current):  # type: ignore[no-untyped-def]
    """The number of the window of each row: a row for which `ends` holds is the last of its window."""
    number = np.empty(key.size, np.int64)
    for row in range(key.size):
        number[row] = current[key[row]]
        if ends[row]:
            current[key[row]] += 1
    return number


@njit(cache=True)
def suffix_starts(key, value, reach, count):  # type: ignore[no-untyped-def]
    """For each record (sorted by key, then order) the first record that is still in range when it comes: at most `count`
    records, none whose value is `reach` or more away from the newest (NaN: no such limit). What is out stays out."""
    start = np.empty(key.size, np.int64)
    for i in range(key.size):
        front = i if i == 0 or key[i] != key[i - 1] else start[i - 1]
        if count > 0:
            front = max(front, i + 1 - count)
        if reach == reach:
            while front < i and abs(value[i] - value[front]) >= reach:
                front += 1
        start[i] = front
    return start


@njit(cache=True)
def greatest_so_far(key, value):  # type: ignore[no-untyped-def]
    out = np.empty(key.size, value.dtype)
    for i in range(key.size):
        out[i] = value[i] if i == 0 or key[i] != key[i - 1] else max(out[i - 1], value[i])
    return out


@njit(cache=True)
def suffix_starts_by_time(key, time, newest, reach):  # type: ignore[no-untyped-def]
    """As `suffix_starts`, for records that are `reach` or more older than the newest so far."""
    start = np.empty(key.size, np.int64)
    for i in range(key.size):
        front = i if i == 0 or key[i] != key[i - 1] else start[i - 1]
        while front < i and newest[i] - time[front] >= reach:
            front += 1
        start[i] = front
    return start


@njit(cache=True)
def steps_by_delta(key, value, done, threshold, anchor, anchored):  # type: ignore[no-untyped-def]
    """Where a step ends: the value is `threshold` or more away from its value at the last step. Per record; records that are
    `done` were looked at in an earlier batch."""
    ends = np.zeros(key.size, np.bool_)
    for i in range(key.size):
        if done[i] or value[i] != value[i]:
            continue
        k = key[i]
        if not anchored[k]:
            anchored[k] = True
            anchor[k] = value[i]
        elif abs(value[i] - anchor[k]) >= threshold:
            anchor[k] = value[i]
            ends[i] = True
    return ends

"""What members of a consumer group subscribe to: the one thing the broker reads of their opaque metadata.

version i16 | [topic string] | user data | …"""

from __future__ import annotations

import struct
from collections.abc import Iterable


def subscribed_topics(metadata: Iterable[bytes]) -> set[str]:
    """The topics in these subscriptions. Metadata of another shape names none."""
    topics: set[str] = set()
    for data in metadata:
        try:
            (count,) = struct.unpack_from(">i", data, 2)
            at = 6
            for _ in range(max(count, 0)):
                (size,) = struct.unpack_from(">h", data, at)
                topics.add(data[at + 2 : at + 2 + size].decode())
                at += 2 + size
        except (struct.error, UnicodeDecodeError):
            continue
    return topics

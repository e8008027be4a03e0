"""Bytes that many connections share: taken before memory is used, given back after. Who finds too little waits in line.

Invariant: `used` is what was taken and not given back. It may exceed `total` by what one taker needs at least, never by more takers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Budget:
    def __init__(self, total: int, *, on_spent: Callable[[], None] = lambda: None, on_room: Callable[[], None] = lambda: None) -> None:
        self.total = total
        self.used = 0
        self._on_spent, self._on_room = on_spent, on_room
        self._line: deque[Callable[[], None]] = deque()

    @property
    def is_spent(self) -> bool:
        return self.used >= self.total

    @property
    def has_line(self) -> bool:
        return bool(self._line)

    def has_room(self, size: int) -> bool:
        """Whether this much fits. Something larger than the whole budget fits when nothing else is held."""
        return self.used + size <= self.total or self.used == 0

    def take(self, size: int) -> None:
        was_spent = self.is_spent
        self.used += size
        assert self.used >= 0, "more given back than taken"
        if size > 0 and self.is_spent and not was_spent:
            self._on_spent()
        elif size < 0 and not self.is_spent:
            self._on_room()

    def give_back(self, size: int) -> None:
        """Give back and let the first in line go on."""
        if not size:
            return
        self.take(-size)
        while self._line and not self.is_spent:
            self._line.popleft()()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when there is room."""
        self._line.append(go_on)

    def leave_line(self, go_on: Callable[[], None]) -> None:
        if go_on in self._line:
            self._line.remove(go_on)

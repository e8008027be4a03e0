"""The windowed aggregate as a kernel: what a step is, as frozen data.

The data travels to the worker; there `start` and `restore` load the machine (`aligned.py`, `session.py`, `sequence.py`) and its
compiled loops. Nothing here imports them, so a plan can be made, printed and sent without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.aggregate import Aggregate
from penstock.schema import Field, Schema

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.kernels.windowing import Windowing

PANE = Schema.of(
    "window_start TIMESTAMP, window_end TIMESTAMP, pane_index INT, on_time_index INT, pane_timing STRING, is_first BOOLEAN, is_last BOOLEAN"
)
SIGN = Schema.of("sign INT")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKernel:
    """Aggregates per key and window, with panes as the trigger says.

    `schema` is the input's columns; conditions, gaps and deltas name columns of it. With `signed` the input carries a column
    `sign` (+1, -1), and records of sign -1 are taken back. `allowed_lateness_us` None is for ever."""

    schema: Schema
    keys: tuple[str, ...]
    window: windows.Window
    aggregates: tuple[Aggregate, ...]
    trigger: triggers.Trigger = triggers.DEFAULT
    refinement: Literal["discarding", "accumulating", "retracting"] = "accumulating"
    allowed_lateness_us: int | None = 0
    signed: bool = False

    @property
    def state_version(self) -> int:
        return 1

    @property
    def output(self) -> Schema:
        """The columns of the panes: keys, aggregates, what the pane is, and its sign if there are retractions."""
        keys = self.schema.select(*self.keys) if self.keys else Schema(())
        results = Schema(tuple(Field(aggregate.output, aggregate.type) for aggregate in self.aggregates))
        return keys + results + (PANE + SIGN if self.refinement == "retracting" else PANE)

    @property
    def needs_clock(self) -> bool:
        """Whether something in the step happens in processing time, so that ticks must come."""
        return getattr(self.window, "time", "event") == "processing" or any(
            isinstance(t, triggers.AfterProcessingTime) for t in _walk(self.trigger)
        )

    @property
    def combinable(self) -> bool:
        """Whether `combine` may run before the step. Late records are then counted, but their rows cannot be given back."""
        if not isinstance(self.window, windows.Tumbling | windows.Sliding) or self.window.time != "event":
            return False
        return not any(isinstance(t, triggers.AfterDelta | triggers.AfterPunctuation) for t in _walk(self.trigger))

    def combine(self, rows: pa.Table) -> pa.Table:
        """One row per key and slice, to be sent to the step instead of the rows."""
        from penstock.kernels.windowing import combine

        return combine(self, rows)

    def start(self) -> Windowing:
        from penstock.kernels.windowing import Windowing

        return Windowing(self)

    def restore(self, saved: Sequence[bytes]) -> Windowing:
        from penstock.kernels.windowing import Windowing

        instance = Windowing(self)
        instance.load(saved)
        return instance


def _walk(trigger: triggers.Trigger) -> list[triggers.Trigger]:
    match trigger:
        case triggers.AfterWatermark(early, late):
            inner = [part for part in (early, late) if part]
        case triggers.Repeatedly(one):
            inner = [one]
        case triggers.AfterAny(parts) | triggers.AfterAll(parts) | triggers.AfterEach(parts):
            inner = list(parts)
        case triggers.OrFinally(one, until):
            inner = [one, until]
        case _:
            inner = []
    return [trigger] + [each for part in inner for each in _walk(part)]

"""The demo in the terminal: areas, averages, alarms, speed and watermark, redrawn a few times a second."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.demo.fire_alarm import Demo
from penstock.demo.sensors import AREAS

HOT_CELSIUS = 40.0
BAR_CELSIUS_MAX = 120.0


class View:
    """`with View() as view: run(…, on_change=view.show)`. Without a terminal it prints a line when something happens."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=False) if self._console.is_terminal else None
        self._said: set[str] = set()

    def __enter__(self) -> View:
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(None, None, None)

    def show(self, demo: Demo) -> None:
        if self._live:
            self._live.update(_page(demo), refresh=True)
            return
        self._say(f"broker at {demo.address}")
        if demo.ui:
            self._say(f"pipeline on Spark, its page at {demo.ui}")
        for alarm in demo.watch.alarms if demo.watch else []:
            self._say(f"ALARM in {alarm['area']} at {_clock(demo, alarm['at'])}: {alarm['celsius']:.1f} °C and smoke")

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._console.print(line, highlight=False)


def _page(demo: Demo) -> RenderableType:
    elapsed_s = time.monotonic() - demo.begun_s
    records = int(demo.totals.get("records", 0))
    per_s = records / elapsed_s if elapsed_s else 0.0
    lag_us = _watermark_lag_us(demo)
    head = Text.assemble(
        ("Penstock fire alarm", "bold"), f"   {demo.phase}   building's clock {_span(demo.simulated_us)} of {_span(demo.house.seconds * 1_000_000)}, {demo.speed:g} times real time\n",
        (f"broker {demo.address}" + (f"   Spark {demo.ui}" if demo.ui else ""), "dim"),
    )  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title, justify in (("area", "left"), ("60 s average", "right"), ("", "left"), ("state", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    alarmed = {alarm["area"]: alarm for alarm in (demo.watch.alarms if demo.watch else [])}
    for area in (f"area-{number}" for number in range(AREAS)):
        average = demo.watch.averages.get(area) if demo.watch else None
        table.add_row(*_row(area, None if average is None else float(average["celsius"]), area in alarmed))
    alarms = [
        Text(f"🔥 {_clock(demo, alarm['at'])}  {area}: {alarm['celsius']:.1f} °C, and smoke", style="bold red")
        for area, alarm in alarmed.items()
    ]
    foot = Text(
        f"{records:,} records, {per_s:,.0f} a second   late {demo.totals.get('late', 0)}   bad {demo.totals.get('bad', 0)}   "
        f"sent twice {demo.totals.get('duplicates', 0)}   watermark lag {'-' if lag_us is None else _span(lag_us)}", style="dim",
    )  # fmt: skip
    return Group(head, table, *(alarms or [Text("no alarm yet", style="dim")]), foot)


def _row(area: str, celsius: float | None, alarmed: bool) -> tuple[str, str, Text, Text]:
    if celsius is None:
        return area, "-", Text(""), Text("waiting", style="dim")
    hot = celsius > HOT_CELSIUS
    bar = Text("█" * round(min(celsius, BAR_CELSIUS_MAX) / 4), style="red" if hot else "green")
    state = Text("ALARM", style="bold red") if alarmed and hot else Text("hot", style="yellow") if hot else Text("calm", style="green")
    return area, f"{celsius:.1f} °C", bar, state


def _watermark_lag_us(demo: Demo) -> int | None:
    watermark_us = demo.totals.get("watermark_us")
    if not watermark_us or not demo.simulated_us:
        return None
    start_us = round(demo.house.start.timestamp() * 1_000_000)
    return max(0, start_us + demo.simulated_us - int(watermark_us))


def _clock(demo: Demo, at: str) -> str:
    """A moment of the building's clock, as time since the start."""
    moment = datetime.fromisoformat(at).astimezone(UTC)
    return _span(round((moment - demo.house.start) / timedelta(microseconds=1)))


def _span(duration_us: int) -> str:
    seconds = max(0, duration_us) // 1_000_000
    return f"{seconds // 60}:{seconds % 60:02d}"

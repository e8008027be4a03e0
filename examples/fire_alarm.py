"""Fire alarm: an area is on fire when its average temperature is high and smoke follows.

Reads the topics `temperatures` and `smoke`; writes `averages`, `alarms`, `late` and `dead-letters`. Run it with
`penstock demo` (which brings sensors), or on your own topics with `penstock run examples/fire_alarm.py`."""

import penstock as ps

HOT_CELSIUS = 40
SMOKE_DENSITY = 0.5

temperatures = (
    ps.read("temperatures", "id STRING, area STRING, sensor STRING, celsius DOUBLE, at TIMESTAMP")
    .require("celsius BETWEEN -50 AND 200")
    .event_time("at", lateness="10s")
)
smoke = (
    ps.read("smoke", "id STRING, area STRING, sensor STRING, density DOUBLE, at TIMESTAMP")
    .require("density BETWEEN 0 AND 1")
    .event_time("at", lateness="10s")
)

averages = (
    temperatures.key_by("area")
    .deduplicate("id", within="10m")
    .window(ps.sliding("60s", every="5s"))
    .aggregate(celsius="avg(celsius)", readings="count(*)")
)  # fmt: skip
smoky = smoke.key_by("area").deduplicate("id", within="10m").where(f"density > {SMOKE_DENSITY}")


@ps.process(state="celsius DOUBLE, alarmed BOOLEAN", output="area STRING, at TIMESTAMP, celsius DOUBLE")
def alarm(event: ps.Event, state: ps.State, out: ps.Out) -> None:
    """calm → hot → alarm, per area and in event time; back to calm when it cools. Smoke counts only while it is hot."""
    if event.stream == "smoke":
        if state.celsius is not None and not state.alarmed:
            state.alarmed = True
            out.emit(area=event.area, at=event.at, celsius=state.celsius)
    elif event.celsius > HOT_CELSIUS:
        state.celsius = event.celsius
    else:
        state.clear()


pipeline = ps.pipeline(
    averages.connect(smoky).key_by("area").process(alarm).write("alarms"),
    averages.write("averages"),
    averages.late.write("late"),
    temperatures.dead_letters.write("dead-letters"),
    smoke.dead_letters.write("dead-letters"),
    name="fire-alarm",
)

"""Random transcripts: any window, any trigger, any refinement, and actions that meet each other in unlikely ways."""

from __future__ import annotations

import random

from penstock.clock import MICROS
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.trigger import Trigger
from penstock.dataflow.window import Window
from penstock.testing.transcript import (
    FOREVER_US,
    REFINEMENTS,
    Action,
    Clock,
    Idle,
    Input,
    Partitions,
    Record,
    Restart,
    Stage,
    Step,
    Transcript,
    Watermark,
)

WINDOWS = ("tumbling", "sliding", "session", "global", "count", "delta", "punctuation")


def random_window(source: random.Random, kind: str) -> Window:
    match kind:
        case "tumbling":
            return windows.tumbling(source.choice([3, 5, 10]), offset=source.choice([0, 0, 2]))
        case "sliding":
            size, every = source.choice([(6, 2), (10, 5), (4, 6), (9, 3), (7, 2)])
            return windows.sliding(size, every=every, offset=source.choice([0, 0, 1]))
        case "session":
            return windows.session(source.choice([2, 3, 5]))
        case "global":
            return windows.global_window()
        case "count":
            size = source.choice([1, 2, 3, 4])
            return windows.count(size, every=source.choice(range(1, size + 1)))
        case "delta":
            return windows.delta("value", source.choice([2, 4]))
        case _:
            return windows.punctuation("value % 4 = 0")


def random_trigger(source: random.Random, depth: int = 0) -> Trigger:
    leaves = ["watermark", "watermark", "count", "time", "delta", "punctuation"]
    inner = ["early_late", "early_late", "repeatedly", "repeatedly", "any", "all", "each", "finally"]
    kind = source.choice(leaves if depth >= 3 else leaves[:4] + inner)
    match kind:
        case "watermark":
            return triggers.after_watermark()
        case "count":
            return triggers.after_count(source.choice([1, 2, 3]))
        case "time":
            return triggers.after_processing_time(source.choice([0, 2, 4]))
        case "delta":
            return triggers.after_delta("value", 3)
        case "punctuation":
            return triggers.after_punctuation("value % 3 = 0")
        case "early_late":
            early = random_trigger(source, depth + 1) if source.random() < 0.6 else None
            late = random_trigger(source, depth + 1) if source.random() < 0.7 else None
            return triggers.after_watermark(early=early, late=late)
        case "repeatedly":
            return triggers.repeatedly(random_trigger(source, depth + 1))
        case "finally":
            return triggers.or_finally(random_trigger(source, depth + 1), random_trigger(source, depth + 1))
        case _:
            make = {"any": triggers.after_any, "all": triggers.after_all, "each": triggers.after_each}[kind]
            return make(*(random_trigger(source, depth + 1) for _ in range(source.choice([1, 2, 2, 3]))))


def random_transcript(seed: int, *, kind: str | None = None, trigger: Trigger | None = None, length: int = 25) -> Transcript:
    source = random.Random(seed)
    window = random_window(source, kind or source.choice(WINDOWS))
    stage = Stage(
        window,
        trigger or random_trigger(source),
        source.choice(REFINEMENTS),
        source.choice([0, 0, 3, 6, 12]) * MICROS if source.random() < 0.9 else FOREVER_US,
    )
    steps = [Step(action, number, number) for number, action in enumerate(_actions(source, length), start=1)]
    return Transcript(f"seed {seed}: {stage}", (stage,), tuple(steps))


def _actions(source: random.Random, length: int) -> list[Action]:
    actions: list[Action] = []
    watermark, now = -5, 0
    partitions = {"a": 0, "b": 0} if source.random() < 0.2 else {}
    for _ in range(length):
        roll = source.random()
        if roll < 0.55:
            actions.append(Input(tuple(_record(source, watermark) for _ in range(source.choice([0, 1, 1, 1, 2, 3, 5])))))
        elif roll < 0.75 and partitions:
            name = source.choice(list(partitions))
            if source.random() < 0.3:
                actions.append(Idle(name))
            else:
                partitions[name] += source.choice([1, 3, 6])
                watermark = max(watermark, min(partitions.values()))
                actions.append(Partitions(((name, partitions[name] * MICROS),)))
        elif roll < 0.75:
            watermark += source.choice([0, 1, 2, 4, 9])
            actions.append(Watermark(watermark * MICROS))
        elif roll < 0.9:
            now += source.choice([0, 1, 2, 5])
            actions.append(Clock(now * MICROS))
        else:
            actions.append(Restart())
    if source.random() < 0.5:
        actions.append(Watermark(FOREVER_US if source.random() < 0.3 else (watermark + 100) * MICROS))
    return actions


def _record(source: random.Random, watermark: int) -> Record:
    at = max(-8, watermark + source.randrange(-8, 12))
    return Record(source.choice("kkka"), at * MICROS, source.randrange(10))

"""Transcripts: a windowed aggregation, what happens to it, and the panes that must come out, as YAML.

    file ──▶ documents ──▶ Transcript(window, trigger, …, steps)     read here; constructors are parsed, never evaluated
    Transcript ──▶ a host (`host.py`, or Spark) ──▶ what happened ──▶ `judge.py` ──▶ passed, or a readable difference

Invariant: what `read` returns is well formed; everything else is a `MalformedTranscript` that names file, document and step.
A number in the file is seconds; inside, times are microseconds. The rules themselves are in docs/guides/testing.md."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from penstock.clock import MICROS
from penstock.dataflow import trigger as triggers
from penstock.dataflow import window as windows
from penstock.dataflow.trigger import DEFAULT, Trigger
from penstock.dataflow.window import Window
from penstock.errors import ConfigError

FOREVER_US = 1 << 62  # the same number as in kernels/kernel.py, which needs columnar libraries beside it
REFINEMENTS = ("accumulating", "discarding", "retracting")
TIMINGS = ("early", "on_time", "late")
DEFAULT_KEY = "k"
PANE_ATTRIBUTES = ("key", "window", "values", "timing", "index", "on_time_index", "first", "last", "sign")


class MalformedTranscript(ConfigError):
    """A transcript that cannot be read. Names file, document and step."""


# ── What is in a transcript ──────────────────────────────────────────────────────────────────────────────────────────


class Record(NamedTuple):
    """One record of an `input` or `late` step: `3` is {key: k, at: 3, value: 3}."""

    key: Any
    at_us: int | None
    value: Any
    more: tuple[tuple[str, Any], ...] = ()  # further columns, for delta and punctuation
    partition: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        return {"key": self.key, "value": self.value, **dict(self.more)}


@dataclass(frozen=True, slots=True)
class Input:
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Watermark:
    watermark_us: int


@dataclass(frozen=True, slots=True)
class Clock:
    now_us: int


@dataclass(frozen=True, slots=True)
class Partitions:
    watermarks_us: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Idle:
    partition: str


@dataclass(frozen=True, slots=True)
class Restart:
    pass


Action = Input | Watermark | Clock | Partitions | Idle | Restart


@dataclass(frozen=True, slots=True)
class Expect:
    panes: tuple[Mapping[str, Any], ...]  # only the attributes that are compared


@dataclass(frozen=True, slots=True)
class Late:
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class State:
    open: tuple[tuple[int, int] | None, ...] | None  # None: not compared
    keys: int | None


Check = Expect | Late | State


@dataclass(frozen=True, slots=True)
class Step:
    """A step and its place: number from 1, line from 1."""

    does: Action | Check
    number: int
    line: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One windowed aggregation. `value` is what a pane of the stage before is worth to this one."""

    window: Window
    trigger: Trigger = DEFAULT
    accumulate: str = "accumulating"
    allowed_lateness_us: int = 0
    value: str = "count"


@dataclass(frozen=True, slots=True)
class Transcript:
    name: str
    stages: tuple[Stage, ...]  # one, unless the transcript has `then:`
    steps: tuple[Step, ...]
    file: str = "<text>"
    document: int = 1
    line: int = 1

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def actions(self) -> Iterator[Action]:
        """What happens, in order: a host answers each with what came out."""
        for step in self.steps:
            if isinstance(step.does, Action):
                yield step.does


@dataclass(frozen=True, slots=True)
class Pane:
    """A pane as it came out."""

    key: Any
    window: tuple[int, int] | None
    values: tuple[Any, ...]
    timing: str
    index: int
    on_time_index: int
    first: bool
    last: bool
    sign: str = "+"


# ── Constructors ─────────────────────────────────────────────────────────────────────────────────────────────────────


_NUMBER_MAX = 1e12  # seconds: thirty thousand years, and far from where microseconds leave 64 bits
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ConfigError(f"'{text}' is not a number", remedy="write it like 10 or 2.5")
    number = float(text) if set(text) & set(".eE") else int(text)
    if abs(number) > _NUMBER_MAX:
        raise ConfigError(f"'{text}' is too large", remedy=f"stay below {_NUMBER_MAX:.0e}")
    return number


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"'{text}' is not a whole number") from None


def _text(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def _trigger(text: str) -> Trigger:
    return parse_trigger(text)


@dataclass(frozen=True, slots=True)
class _Constructor:
    """`name(first, second=default)`: how each argument is read, and what is made of them."""

    make: Callable[..., Any]  # takes the arguments by our names; all in a row if there may be many
    arguments: tuple[tuple[str, Callable[[str], Any]], ...]
    needed: int
    shape: str
    many: bool = False  # takes any number of the one kind of argument
    named_only: bool = False


_WINDOWS: dict[str, _Constructor] = {
    "tumbling": _Constructor(windows.tumbling, (("size", _number), ("offset", _number)), 1, "tumbling(size, offset=0)"),
    "sliding": _Constructor(
        windows.sliding, (("size", _number), ("every", _number), ("offset", _number)), 2, "sliding(size, every=…, offset=0)"
    ),
    "session": _Constructor(windows.session, (("gap", _number),), 1, "session(gap)"),
    "global_window": _Constructor(windows.global_window, (), 0, "global_window()"),
    "count": _Constructor(lambda n, every=None: windows.count(n, every=every), (("n", _count), ("every", _count)), 1, "count(n, every=n)"),
    "delta": _Constructor(windows.delta, (("column", _text), ("threshold", _number)), 2, "delta(column, threshold)"),
    "punctuation": _Constructor(windows.punctuation, (("condition", _text),), 1, "punctuation(condition)"),
}

_TRIGGERS: dict[str, _Constructor] = {
    "after_watermark": _Constructor(
        triggers.after_watermark, (("early", _trigger), ("late", _trigger)), 0, "after_watermark(early=, late=)", named_only=True
    ),
    "after_count": _Constructor(lambda n: triggers.after_count(n), (("n", _count),), 1, "after_count(n)"),
    "after_processing_time": _Constructor(lambda d: triggers.after_processing_time(d), (("d", _number),), 1, "after_processing_time(d)"),
    "every": _Constructor(lambda d: triggers.every(d), (("d", _number),), 1, "every(d)"),
    "after_delta": _Constructor(triggers.after_delta, (("column", _text), ("threshold", _number)), 2, "after_delta(column, threshold)"),
    "after_punctuation": _Constructor(triggers.after_punctuation, (("condition", _text),), 1, "after_punctuation(condition)"),
    "repeatedly": _Constructor(lambda t: triggers.repeatedly(t), (("t", _trigger),), 1, "repeatedly(t)"),
    "after_any": _Constructor(triggers.after_any, (("t", _trigger),), 1, "after_any(t, …)", many=True),
    "after_all": _Constructor(triggers.after_all, (("t", _trigger),), 1, "after_all(t, …)", many=True),
    "after_each": _Constructor(triggers.after_each, (("t", _trigger),), 1, "after_each(t, …)", many=True),
    "or_finally": _Constructor(
        lambda t, until: triggers.or_finally(t, until), (("t", _trigger), ("until", _trigger)), 2, "or_finally(t, until)"
    ),
}

_CALL = re.compile(r"\s*([A-Za-z_]\w*)\s*\((.*)\)\s*$", re.DOTALL)
_NAMED = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*(.*)$", re.DOTALL)


def parse_window(text: str) -> Window:
    """
    >>> parse_window("sliding(60, every=5)")
    Sliding(size_us=60000000, every_us=5000000, offset_us=0, time='event')
    """
    window: Window = _parse(text, _WINDOWS, "window")
    return window


def parse_trigger(text: str) -> Trigger:
    """
    >>> parse_trigger("repeatedly(after_count(2))")
    Repeatedly(trigger=AfterCount(count=2))
    """
    trigger: Trigger = _parse(text, _TRIGGERS, "trigger")
    return trigger


def _parse(text: str, family: Mapping[str, _Constructor], what: str) -> Any:
    call = _CALL.match(text)
    if call is None:
        example = "tumbling(10)" if what == "window" else "after_watermark()"
        raise ConfigError(f"'{text}' is not a {what}", remedy=f"write a name and arguments in parentheses, for example {example}")
    name, inside = call.groups()
    constructor = family.get(name)
    if constructor is None:
        raise ConfigError(f"there is no {what} '{name}'", remedy=f"use one of {', '.join(each.shape for each in family.values())}")
    try:
        positional, named = _arguments(inside, constructor)
    except ConfigError as error:
        raise ConfigError(f"in '{text.strip()}': {error.message}", remedy=error.remedy or f"write {constructor.shape}") from None
    return constructor.make(*positional, **named)


def _arguments(inside: str, constructor: _Constructor) -> tuple[list[Any], dict[str, Any]]:
    """The arguments by name; or in a row, if the constructor takes many."""
    names = [name for name, _ in constructor.arguments]
    readers = dict(constructor.arguments)
    # A condition is text to the closing parenthesis: it may hold commas and equal signs of its own.
    is_condition = names == ["condition"]
    parts = [inside.strip()] if is_condition and inside.strip() else list(_split(inside))
    row: list[Any] = []
    named: dict[str, Any] = {}
    for place, part in enumerate(parts):
        match = _NAMED.match(part)
        if match and match.group(1) in readers and not constructor.many:
            name, value = match.groups()
        elif match and not is_condition:
            raise ConfigError(f"there is no argument '{match.group(1)}'")
        elif constructor.named_only:
            raise ConfigError(f"'{part}' needs its name")
        elif constructor.many:
            row.append(readers[names[0]](part))
            continue
        elif place >= len(names):
            raise ConfigError(f"'{part}' is one argument too many")
        else:
            name, value = names[place], part
        if name in named:
            raise ConfigError(f"'{name}' is given twice")
        named[name] = readers[name](value.strip())
    if "" in parts or len(row) + sum(name in named for name in names[: constructor.needed]) < constructor.needed:
        raise ConfigError("an argument is missing")
    return row, named


def _split(inside: str) -> Iterator[str]:
    """The arguments: cut at commas outside of parentheses and quotes."""
    if not inside.strip():
        return
    depth, quote, start = 0, "", 0
    for place, char in enumerate(inside):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
            if depth < 0:
                raise ConfigError("a parenthesis is closed that was not opened")
        elif char == "," and depth == 0:
            yield inside[start:place].strip()
            start = place + 1
    if quote or depth:
        raise ConfigError("a quote or a parenthesis is not closed")
    yield inside[start:].strip()


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: str | Path) -> list[Transcript]:
    """All transcripts of a file."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MalformedTranscript(f"{path} cannot be read: {error.strerror}", remedy="name a YAML file with transcripts") from None
    except UnicodeDecodeError:
        raise MalformedTranscript(f"{path} is not text", remedy="save it as UTF-8") from None
    return reads(text, file=str(path))


def reads(text: str, *, file: str = "<text>") -> list[Transcript]:
    """All transcripts of a text; documents are separated by `---`."""
    loader = yaml.SafeLoader(text)
    transcripts = []
    document = 0
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            document += 1
            content = loader.construct_document(node)  # type: ignore[no-untyped-call]
            if content is None:  # an empty document, as after a last `---`
                continue
            transcripts.append(_Reader(file, document, node).transcript(content))
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise MalformedTranscript(f"{file}, document {document + 1}: not YAML: {problem}", remedy="quote text that holds : or #") from None
    except RecursionError:
        raise MalformedTranscript(f"{file}, document {document}: nested too deeply", remedy="make it simpler") from None
    finally:
        loader.dispose()
    if not transcripts:
        raise MalformedTranscript(f"{file} has no transcript", remedy="a transcript has at least `window` and `steps`")
    return transcripts


_FIELDS = ("name", "window", "trigger", "accumulate", "allowed_lateness", "steps", "then")
_STAGE_FIELDS = ("window", "trigger", "accumulate", "allowed_lateness", "value")


@dataclass
class _Reader:
    """Reads one document and knows where it is, for errors."""

    file: str
    document: int
    node: yaml.Node
    name: str = ""
    step: int | None = None
    line: int = 1
    lines: list[int] = field(default_factory=list)

    def wrong(self, what: str, remedy: str | None = None) -> MalformedTranscript:
        where = f"{self.file}:{self.line}, document {self.document}"
        if self.name:
            where += f" '{self.name}'"
        if self.step is not None:
            where += f", step {self.step}"
        return MalformedTranscript(f"{where}: {what}", remedy=remedy)

    def transcript(self, content: Any) -> Transcript:
        start = self.line = self.node.start_mark.line + 1
        if not isinstance(content, dict):
            raise self.wrong("a transcript is a mapping", "begin with `name:`, `window:` and `steps:`")
        name = self.name = str(content.get("name") or f"transcript {self.document}")
        self.known(content, _FIELDS, "a transcript")
        if "window" not in content or "steps" not in content:
            missing = "window" if "window" not in content else "steps"
            raise self.wrong(f"`{missing}` is missing", "a transcript has at least `window` and `steps`")
        stages = [self.stage({name: value for name, value in content.items() if name in _STAGE_FIELDS})]
        more = content.get("then") or []
        for each in more if isinstance(more, list) else [more]:
            if not isinstance(each, dict) or "window" not in each:
                raise self.wrong("`then` lists further aggregations", "write `then: [{window: tumbling(60), value: sum}]`")
            self.known(each, _STAGE_FIELDS, "an aggregation under `then`")
            stages.append(self.stage(each))
        if not isinstance(content["steps"], list):
            raise self.wrong("`steps` is not a list", "write each step as `- input: […]` or the like")
        steps = tuple(self.steps(content["steps"]))
        return Transcript(name, tuple(stages), steps, self.file, self.document, start)

    def known(self, mapping: Mapping[Any, Any], names: Sequence[str], what: str) -> None:
        for name in mapping:
            if name not in names:
                raise self.wrong(f"{what} has no `{name}`", f"it has {', '.join(names)}")

    def stage(self, content: Mapping[str, Any]) -> Stage:
        try:
            window = parse_window(str(content["window"]))
            trigger = parse_trigger(str(content["trigger"])) if content.get("trigger") is not None else DEFAULT
        except ConfigError as error:
            raise self.wrong(error.message, error.remedy) from None
        accumulate = content.get("accumulate", "accumulating")
        if accumulate not in REFINEMENTS:
            raise self.wrong(f"`accumulate` is {accumulate!r}", f"it is one of {', '.join(REFINEMENTS)}")
        lateness_us = self.time(content.get("allowed_lateness", 0), "allowed_lateness")
        if lateness_us < 0:
            raise self.wrong("`allowed_lateness` is negative", "give seconds from 0, or forever")
        value = content.get("value", "count")
        if value not in ("count", "sum", "min", "max"):
            raise self.wrong(f"`value` is {value!r}", "what a pane is worth to the next aggregation is count, sum, min or max")
        return Stage(window, trigger, str(accumulate), lateness_us, str(value))

    def steps(self, content: list[Any]) -> Iterator[Step]:
        lines = self.step_lines(len(content))
        now_us = 0
        for place, each in enumerate(content):
            self.step, self.line = place + 1, lines[place]
            if not isinstance(each, dict) or len(each) != 1:
                raise self.wrong(f"{each!r} is not a step", f"a step is one of {', '.join(self.kinds())} and its content")
            ((kind, value),) = each.items()
            reader = self.kinds().get(kind)
            if reader is None:
                raise self.wrong(f"there is no step `{kind}`", f"a step is one of {', '.join(self.kinds())}")
            does = reader(value)
            if isinstance(does, Clock):
                if does.now_us < now_us:
                    raise self.wrong("`clock` goes back", "give the time that it moves to, not the time that passes")
                now_us = does.now_us
            yield Step(does, place + 1, lines[place])

    def step_lines(self, count: int) -> list[int]:
        for key, value in self.node.value:
            if key.value == "steps" and isinstance(value, yaml.SequenceNode):
                return [each.start_mark.line + 1 for each in value.value]
        return [self.line] * count

    def kinds(self) -> dict[str, Callable[[Any], Action | Check]]:
        return {
            "input": lambda value: Input(self.records(value, "input")),
            "watermark": lambda value: Watermark(self.time(value, "watermark")),
            "clock": self.clock,
            "expect": self.expect,
            "late": lambda value: Late(self.records(value, "late")),
            "state": self.state,
            "restart": self.restart,
            "partition": self.partitions,
            "idle": self.idle,
        }

    def time(self, value: Any, what: str) -> int:
        if value == "forever" or (isinstance(value, float) and value == math.inf):
            return FOREVER_US
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(f"`{what}` is {value!r}", "give a number of seconds" + ("" if what in ("at", "clock") else ", or forever"))
        if abs(value) > _NUMBER_MAX:
            raise self.wrong(f"`{what}` is {value!r}, which is no time", f"stay below {_NUMBER_MAX:.0e} seconds")
        return round(value * MICROS)

    def clock(self, value: Any) -> Clock:
        now_us = self.time(value, "clock")
        if now_us == FOREVER_US:
            raise self.wrong("`clock` cannot move to forever", "give a number of seconds")
        return Clock(now_us)

    def records(self, value: Any, what: str) -> tuple[Record, ...]:
        if not isinstance(value, list):
            raise self.wrong(f"`{what}` is not a list", f"write `{what}: [1, 2]` or `{what}: [{{key: a, at: 4, value: 7}}]`")
        return tuple(self.record(each) for each in value)

    def record(self, each: Any) -> Record:
        if isinstance(each, int | float) and not isinstance(each, bool):
            return Record(DEFAULT_KEY, self.time(each, "at"), each)
        if not isinstance(each, dict) or not ("at" in each or "value" in each):
            raise self.wrong(f"{each!r} is not a record", "write a number of seconds, or {key: a, at: 4, value: 7}")
        more = dict(each)
        key = more.pop("key", DEFAULT_KEY)
        at = more.pop("at", more.get("value"))
        value = more.pop("value", at)
        partition = more.pop("partition", None)
        for name, content in [("key", key), ("value", value), *more.items()]:
            if isinstance(content, list | dict):
                raise self.wrong(f"`{name}` of a record is {content!r}", "give a number, text, true, false or null")
        at_us = None if at is None else self.time(at, "at")
        return Record(key, at_us, value, tuple(sorted(more.items())), None if partition is None else str(partition))

    def expect(self, value: Any) -> Expect:
        if not isinstance(value, list):
            raise self.wrong("`expect` is not a list", "list the panes, or write `expect: []`")
        return Expect(tuple(self.pane(each) for each in value))

    def pane(self, each: Any) -> Mapping[str, Any]:
        if not isinstance(each, dict):
            raise self.wrong(f"{each!r} is not a pane", "write it as {window: [0, 10], values: [1, 2], timing: on_time}")
        self.known(each, PANE_ATTRIBUTES, "a pane")
        pane = dict(each)
        if "window" in pane:
            pane["window"] = self.bounds(pane["window"])
        if "values" in pane:
            if not isinstance(pane["values"], list):
                raise self.wrong("`values` is not a list", "list the values of the pane")
            pane["values"] = tuple(pane["values"])
        if pane.get("timing", "early") not in TIMINGS:
            raise self.wrong(f"`timing` is {pane['timing']!r}", f"it is one of {', '.join(TIMINGS)}")
        for name in ("index", "on_time_index"):
            if name in pane and (isinstance(pane[name], bool) or not isinstance(pane[name], int)):
                raise self.wrong(f"`{name}` is {pane[name]!r}", "give a whole number")
        for name in ("first", "last"):
            if name in pane and not isinstance(pane[name], bool):
                raise self.wrong(f"`{name}` is {pane[name]!r}", "give true or false")
        signs = {"+": "+", "-": "-", 1: "+", -1: "-"}
        if pane.get("sign", "+") not in signs:
            raise self.wrong(f"`sign` is {pane['sign']!r}", 'it is "+" or "-"')
        pane["sign"] = signs[pane.get("sign", "+")]
        return pane

    def bounds(self, value: Any) -> tuple[int, int] | None:
        if value is None or value == "global":
            return None
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong(f"{value!r} is not a window", "write its start and end in seconds, for example [0, 10]")
        return self.time(value[0], "window"), self.time(value[1], "window")

    def state(self, value: Any) -> State:
        if not isinstance(value, dict) or not value:
            raise self.wrong("`state` is not a mapping", "write for example {open: [[20, 30]], keys: 1}")
        self.known(value, ("open", "keys"), "`state`")
        held = value.get("open")
        if held is not None and not isinstance(held, list):
            raise self.wrong("`open` is not a list of windows", "write for example [[0, 10], [10, 20]]")
        keys = value.get("keys")
        if keys is not None and (isinstance(keys, bool) or not isinstance(keys, int)):
            raise self.wrong(f"`keys` is {keys!r}", "give the number of keys that are held")
        return State(None if held is None else tuple(self.bounds(each) for each in held), keys)

    def restart(self, value: Any) -> Restart:
        if value is not True:
            raise self.wrong(f"`restart` is {value!r}", "write `restart: true`")
        return Restart()

    def partitions(self, value: Any) -> Partitions:
        if not isinstance(value, dict) or not value:
            raise self.wrong("`partition` is not a mapping", "write partitions and their watermarks, for example {a: 12, b: 7}")
        return Partitions(tuple((str(name), self.time(each, "partition")) for name, each in value.items()))

    def idle(self, value: Any) -> Idle:
        if value is None or isinstance(value, dict | list):
            raise self.wrong(f"`idle` is {value!r}", "name one partition")
        return Idle(str(value))


def read_step(kind: str, content: Any) -> Action | Check:
    """One step from Python values, with the short forms and the errors of a file."""
    reader = _Reader("<step>", 1, yaml.ScalarNode("", ""))
    reader.name = kind
    return reader.kinds()[kind](content)

"""Did it happen as the transcript says? Compares what a host did with what is expected, and says the difference.

    Transcript + one `Happened` per action ──▶ `judge` ──▶ Verdict;   files + a host ──▶ `run_files` ──▶ Report

Invariant: a transcript passes only if every pane was claimed by an `expect` and every expected pane came. Knows no kernel and no Spark: a
host is anything that answers each action of a transcript with what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.clock import MICROS
from penstock.errors import PenstockError
from penstock.testing.transcript import (
    FOREVER_US,
    PANE_ATTRIBUTES,
    Action,
    Expect,
    Late,
    MalformedTranscript,
    Pane,
    Record,
    State,
    Step,
    Transcript,
    read,
)  # fmt: skip


class Held(NamedTuple):
    """What a host still holds: a window for each key that has it open (None: a window without bounds), and the number of keys."""

    open: tuple[tuple[int, int] | None, ...]
    keys: int


class Happened(NamedTuple):
    """What came out of one action, in order. `held` is None where the host cannot see its state."""

    panes: tuple[Pane, ...] = ()
    late: tuple[Record, ...] = ()
    held: Held | None = None


class Refused(NamedTuple):
    """The host does not run this transcript, and why."""

    reason: str


class Host(Protocol):
    """Runs transcripts. One at a time, or many in one query: it answers in the order in which it was asked."""

    @property
    def name(self) -> str: ...
    def run(self, transcripts: Sequence[Transcript]) -> Iterable[Sequence[Happened] | Refused]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """One transcript: passed (no differences), failed, or not run."""

    transcript: Transcript
    differences: tuple[str, ...] = ()
    refused: str | None = None
    notes: tuple[str, ...] = ()  # what could not be compared on this host

    @property
    def passed(self) -> bool:
        return not self.differences and self.refused is None


@dataclass(frozen=True, slots=True)
class Report:
    """All transcripts of a run. `malformed` holds the files that could not be read, with the reason."""

    host: str
    verdicts: tuple[Verdict, ...]
    malformed: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[Verdict, ...]:
        return tuple(each for each in self.verdicts if each.differences)

    @property
    def refused(self) -> tuple[Verdict, ...]:
        return tuple(each for each in self.verdicts if each.refused is not None)

    @property
    def ok(self) -> bool:
        """Nothing failed and everything could be read. What the host refuses is told, and is no failure."""
        return not self.failed and not self.malformed

    def lines(self) -> Iterator[str]:
        for verdict in self.verdicts:
            transcript = verdict.transcript
            mark = "ok  " if verdict.passed else "skip" if verdict.refused is not None else "FAIL"
            yield f"{mark} {transcript.name} ({transcript.place})"
            if verdict.refused is not None:
                yield f"     does not run on {self.host}: {verdict.refused}"
            for text in verdict.differences:
                yield from (f"     {line}" for line in text.splitlines())
            for note in verdict.notes:
                yield f"     note: {note}"
        for text in self.malformed:
            yield f"FAIL {text}"
        passed = sum(each.passed for each in self.verdicts)
        yield (
            f"{len(self.verdicts)} transcripts on {self.host}: {passed} passed, {len(self.failed)} failed, {len(self.refused)} not run"
            + (f"; {len(self.malformed)} files cannot be read" if self.malformed else "")
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "ok": self.ok,
            "passed": sum(each.passed for each in self.verdicts),
            "failed": len(self.failed),
            "refused": len(self.refused),
            "malformed": list(self.malformed),
            "transcripts": [
                {
                    "name": each.transcript.name,
                    "file": each.transcript.file,
                    "document": each.transcript.document,
                    "line": each.transcript.line,
                    "result": "passed" if each.passed else "refused" if each.refused is not None else "failed",
                    "differences": list(each.differences),
                    "refused": each.refused,
                    "notes": list(each.notes),
                }
                for each in self.verdicts
            ],
        }


def run_files(paths: Iterable[str | Path], host_factory: Callable[[], Host]) -> Report:
    """Every transcript of the files (a directory stands for its *.yaml files), on one host."""
    transcripts: list[Transcript] = []
    malformed: list[str] = []
    for path in _files(paths):
        try:
            transcripts += read(path)
        except MalformedTranscript as error:
            malformed.append(str(error))
    host = host_factory()
    return Report(host.name, tuple(run_transcripts(transcripts, host)), tuple(malformed))


def run_transcripts(transcripts: Sequence[Transcript], host: Host) -> Iterator[Verdict]:
    answers = iter(host.run(transcripts))
    for transcript in transcripts:
        try:
            answer = next(answers)
        except StopIteration:
            raise PenstockError(f"host {host.name} gave no answer for transcript '{transcript.name}'") from None
        yield Verdict(transcript, refused=answer.reason) if isinstance(answer, Refused) else judge(transcript, answer)


def _files(paths: Iterable[str | Path]) -> Iterator[Path]:
    for each in map(Path, paths):
        if each.is_dir():
            yield from sorted([*each.rglob("*.yaml"), *each.rglob("*.yml")])
        else:
            yield each


def judge(transcript: Transcript, happened: Sequence[Happened]) -> Verdict:
    """Walks the steps: actions bring panes and late records, checks claim them."""
    differences: list[str] = []
    notes: list[str] = []
    panes: list[Pane] = []
    late: list[Record] = []
    held: Held | None = Held((), 0)
    answers = iter(happened)
    asked = last_place = None
    for step in transcript.steps:
        match step.does:
            case Expect(expected):
                differences += _at(step, list(pane_differences(expected, panes)))
                panes = []
            case Late(records):
                differences += _at(step, list(late_differences(records, late)))
                late = []
            case State() as state:
                if held is None:
                    notes.append(f"step {step.number}: `state` cannot be seen on this host")
                else:
                    differences += _at(step, list(state_differences(state, held)))
            case _:
                assert isinstance(step.does, Action)
                answer = next(answers)
                asked = last_place = step
                panes += answer.panes
                late += answer.late
                held = answer.held
    if panes:
        where = f"after step {last_place.number} (line {last_place.line}): " if last_place else ""
        differences.append(f"{where}no `expect` claims\n" + "\n".join(f"  {show_pane(pane)}" for pane in panes))
    assert asked is None or next(answers, None) is None, "a host answers each action once"
    return Verdict(transcript, tuple(differences), notes=tuple(notes))


def _at(step: Step, texts: list[str]) -> list[str]:
    return [f"step {step.number} (line {step.line}): " + "\n".join(texts)] if texts else []


# ── Panes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pane_differences(expected: Sequence[Mapping[str, Any]], came: Sequence[Pane]) -> Iterator[str]:
    claims = _match(expected, came)
    missing = [place for place in range(len(expected)) if place not in claims]
    unclaimed = [pane for place, pane in enumerate(came) if place not in claims.values()]
    if missing or unclaimed:
        yield "the panes differ"
    for place in missing:
        yield f"  expected, did not come:  {show_expected(expected[place])}"
        near = _nearest(expected[place], unclaimed)
        if near is not None:
            yield f"  came instead:            {show_pane(near)}  (differs in {', '.join(_misfits(expected[place], near))})"
            unclaimed.remove(near)
    for pane in unclaimed:
        yield f"  came, not expected:      {show_pane(pane)}"
    if not missing and not unclaimed:
        yield from _order_differences(expected, came, claims)


def _match(expected: Sequence[Mapping[str, Any]], came: Sequence[Pane]) -> dict[int, int]:
    """Which expected pane claims which: as many as can be, in order where that is possible (augmenting paths)."""
    fits = [[place for place, pane in enumerate(came) if not _misfits(each, pane)] for each in expected]
    claimed_by: dict[int, int] = {}

    def claim(place: int, tried: set[int]) -> bool:
        for candidate in fits[place]:
            if candidate not in tried:
                tried.add(candidate)
                if candidate not in claimed_by or claim(claimed_by[candidate], tried):
                    claimed_by[candidate] = place
                    return True
        return False

    for place in range(len(expected)):
        claim(place, set())
    return {place: candidate for candidate, place in claimed_by.items()}


def _order_differences(expected: Sequence[Mapping[str, Any]], came: Sequence[Pane], claims: Mapping[int, int]) -> Iterator[str]:
    """A retraction comes before the pane that replaces it, in what came and in what is expected."""
    place_of = {candidate: place for place, candidate in claims.items()}
    for retraction, pane in enumerate(came):
        if pane.sign == "-":
            replacing = next((at for at in range(retraction + 1, len(came)) if came[at].sign == "+" and _replaces(came[at], pane)), None)
            if replacing is None:
                yield f"no pane follows the retraction {show_pane(pane)}"
            elif place_of[retraction] > place_of[replacing]:
                yield f"the retraction {show_pane(pane)} comes before {show_pane(came[replacing])}, but is expected after it"


def _replaces(pane: Pane, retracted: Pane) -> bool:
    if pane.key != retracted.key:
        return False
    if pane.window is None or retracted.window is None or pane.window == retracted.window:
        return pane.window == retracted.window
    return pane.window[0] <= retracted.window[0] and retracted.window[1] <= pane.window[1]


def _misfits(expected: Mapping[str, Any], pane: Pane) -> list[str]:
    return [name for name, value in expected.items() if not _same(name, value, getattr(pane, name))]


def _same(name: str, expected: Any, actual: Any) -> bool:
    if name == "values":
        return _multiset(expected) == _multiset(actual)
    return bool(_comparable(expected) == _comparable(actual))


def _comparable(value: Any) -> Any:
    return ("flag", value) if isinstance(value, bool) else value


def _rank(value: Any) -> tuple[str, Any]:
    if value is None:
        return "", 0
    if isinstance(value, bool):
        return "b", value
    if isinstance(value, int | float):
        return ("n", value) if value == value else ("nan", 0)
    return "t", str(value)


def _multiset(values: Iterable[Any]) -> list[tuple[str, Any]]:
    return sorted(map(_rank, values))


def _nearest(expected: Mapping[str, Any], panes: Sequence[Pane]) -> Pane | None:
    """The unclaimed pane that is most likely meant: same sign, and most attributes equal."""
    candidates = [
        pane for pane in panes if expected.get("sign", "+") == pane.sign and len(_misfits(expected, pane)) < max(2, len(expected) - 1)
    ]
    return min(candidates, key=lambda pane: len(_misfits(expected, pane)), default=None)


# ── Late records and state ───────────────────────────────────────────────────────────────────────────────────────────


def late_differences(expected: Sequence[Record], came: Sequence[Record]) -> Iterator[str]:
    left = list(came)
    missing = []
    for record in expected:
        found = next((each for each in left if _same_record(record, each)), None)
        if found is None:
            missing.append(record)
        else:
            left.remove(found)
    if missing or left:
        yield "the late output differs"
    yield from (f"  expected, did not come:  {show_record(record)}" for record in missing)
    yield from (f"  came, not expected:      {show_record(record)}" for record in left)


def _same_record(expected: Record, actual: Record) -> bool:
    more = dict(actual.more)
    return (
        _rank(expected.key) == _rank(actual.key)
        and expected.at_us == actual.at_us
        and _rank(expected.value) == _rank(actual.value)
        and all(_rank(more.get(name)) == _rank(value) for name, value in expected.more)
    )


def state_differences(state: State, held: Held) -> Iterator[str]:
    if state.open is not None:
        each, distinct = sorted(held.open, key=_bounds_rank), sorted(set(held.open), key=_bounds_rank)
        wanted = sorted(state.open, key=_bounds_rank)
        # A window that several keys hold may be listed once, or once for each key.
        if wanted not in (each, distinct):
            yield f"open windows: expected {_show_windows(wanted)}, there are {_show_windows(each)}"
    if state.keys is not None and state.keys != held.keys:
        yield f"keys held: expected {state.keys}, there are {held.keys}"


def _bounds_rank(bounds: tuple[int, int] | None) -> tuple[int, int]:
    return bounds or (FOREVER_US, FOREVER_US)


# ── Words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def seconds(time_us: int) -> str:
    if abs(time_us) >= FOREVER_US:
        return "forever" if time_us > 0 else "never"
    return str(time_us // MICROS) if time_us % MICROS == 0 else repr(time_us / MICROS)


def _show_windows(windows: Iterable[tuple[int, int] | None]) -> str:
    return "[" + ", ".join(map(_show_window, windows)) + "]"


def _show_window(bounds: tuple[int, int] | None) -> str:
    return "null" if bounds is None else f"[{seconds(bounds[0])}, {seconds(bounds[1])}]"


def _show(name: str, value: Any) -> str:
    if name == "window":
        return _show_window(value)
    if name == "values":
        return "[" + ", ".join(map(_show_scalar, sorted(value, key=_rank))) + "]"
    return f'"{value}"' if name == "sign" else _show_scalar(value)


def _show_scalar(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def show_expected(pane: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in pane.items() if not (name == "sign" and value == "+")}
    return "{" + ", ".join(f"{name}: {_show(name, value)}" for name, value in shown.items()) + "}"


def show_pane(pane: Pane) -> str:
    """A pane as a line that an `expect` could hold."""
    shown = {name: getattr(pane, name) for name in PANE_ATTRIBUTES}
    if pane.window is None:
        del shown["window"]
    if pane.timing == "early":
        del shown["on_time_index"]
    return show_expected(shown)


def show_record(record: Record) -> str:
    at = "null" if record.at_us is None else seconds(record.at_us)
    more = "".join(f", {name}: {_show_scalar(value)}" for name, value in record.more)
    return f"{{key: {_show_scalar(record.key)}, at: {at}, value: {_show_scalar(record.value)}{more}}}"

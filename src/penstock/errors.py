"""Errors that a user can cause. Each names the place and the remedy.

Invariant: every error that Penstock raises on purpose is a `PenstockError`; anything else is a bug.
`str(error)` is one line: what is wrong, and after a semicolon what to do about it."""

from __future__ import annotations


class PenstockError(Exception):
    """What went wrong, where, and the remedy, in one line."""

    exit_code = 1

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message}; {remedy}" if remedy else message)


class PlanError(PenstockError):
    """A pipeline that cannot mean what its author wants: unknown column, wrong type, missing window."""

    def __init__(self, step: str, message: str, *, remedy: str | None = None) -> None:
        self.step = step
        super().__init__(f"step '{step}': {message}", remedy=remedy)


class ConfigError(PenstockError):
    """A profile, option or file that cannot be used."""

    exit_code = 2


class MissingPart(PenstockError):
    """Something optional that this action needs and that is not there (Java, a jar, an extra)."""

    exit_code = 3

"""Columns and their types, in Spark's DDL spelling: `area STRING, celsius DOUBLE, at TIMESTAMP`.

A schema is frozen data. It knows Arrow (imported when first asked for, so that the plain package needs none) and nothing of Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = ("BOOLEAN", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "TIMESTAMP", "DATE")
_ALIASES = {"INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT", "BOOL": "BOOLEAN", "BYTES": "BINARY", "TEXT": "STRING"}
_ARRAY = re.compile(r"ARRAY\s*<\s*(.+)\s*>$", re.IGNORECASE)
_MAP = re.compile(r"MAP\s*<\s*(\w+)\s*,\s*(.+)\s*>$", re.IGNORECASE)
_COMMA = re.compile(r",(?![^<]*>)")  # between columns, not inside MAP<…>


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name and its type, one of TYPES, ARRAY<type> or MAP<type,type>."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


@dataclass(frozen=True, slots=True)
class Schema:
    """An ordered set of columns with different names."""

    fields: tuple[Field, ...]

    @staticmethod
    def of(text: str | Schema) -> Schema:
        """
        >>> str(Schema.of("area string, celsius double"))
        'area STRING, celsius DOUBLE'
        """
        if isinstance(text, Schema):
            return text
        fields = tuple(_field(part) for part in _COMMA.split(text) if part.strip())
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise ConfigError(f"schema '{text}' names a column twice", remedy="give each column its own name")
        return Schema(fields)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    def type_of(self, name: str) -> str:
        """The type of a column that is there."""
        return next(field.type for field in self.fields if field.name == name)

    def select(self, *names: str) -> Schema:
        return Schema(tuple(Field(name, self.type_of(name)) for name in names))

    def __add__(self, other: Schema) -> Schema:
        return Schema(self.fields + other.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __str__(self) -> str:
        return ", ".join(map(str, self.fields))

    def to_arrow(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([pa.field(field.name, arrow_type(field.type)) for field in self.fields])


def arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    if item := _ARRAY.match(name):
        return pa.list_(arrow_type(item.group(1)))
    if pair := _MAP.match(name):
        return pa.map_(arrow_type(pair.group(1)), arrow_type(pair.group(2)))
    types: dict[str, pa.DataType] = {
        "BOOLEAN": pa.bool_(), "INT": pa.int32(), "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(),
        "STRING": pa.string(), "BINARY": pa.binary(), "TIMESTAMP": pa.timestamp("us", tz="UTC"), "DATE": pa.date32(),
    }  # fmt: skip
    return types[name]


def _field(part: str) -> Field:
    part = part.strip()
    words = list(part[1:].partition("`")[::2]) if part.startswith("`") else part.split(None, 1)
    if len(words) != 2:
        raise ConfigError(f"'{part}' is not a column", remedy="write a name and a type, for example 'celsius DOUBLE'")
    return Field(words[0], _type(words[1].strip()))


def _type(text: str) -> str:
    if item := _ARRAY.match(text):
        return f"ARRAY<{_type(item.group(1).strip())}>"
    if pair := _MAP.match(text):
        return f"MAP<{_type(pair.group(1))},{_type(pair.group(2).strip())}>"
    name = _ALIASES.get(text.upper(), text.upper())
    if name not in TYPES:
        raise ConfigError(f"'{text}' is not a type", remedy=f"use one of {', '.join(TYPES)} ARRAY<…> or MAP<…,…>")
    return name

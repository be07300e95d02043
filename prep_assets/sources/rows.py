"""Rows on their way into record batches: which columns are wanted, what a value is as text, and how much is a batch."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

MAX_ROWS = 8192  # of a batch
MAX_TEXT = 16 << 20  # bytes of text of a batch; a longer document is a batch of its own
CHUNK = 2 << 20  # bytes read at once, and characters of a batch of Python strings: each exists several times meanwhile

Report = Callable[
    [int, str, str], None
]  # row, where, cause of a bad row: raises, or notes it for the row to be left out
Row = tuple[int, str | None, Sequence[str | None]]  # row, text, kept columns


class BadRowError(Exception):
    """What is wrong with one row."""


@dataclass(frozen=True)
class Columns:
    """What is read. field: the text; kept: further columns. A name is exact, or else a dotted path into nested ones."""

    field: str
    kept: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """row int64, text and each kept column large_string; by position, as a kept one may be named `text`."""
        kept = [pa.field(name, pa.large_string()) for name in self.kept]
        return pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("text", pa.large_string()), *kept])

    def batch(
        self, rows: Sequence[int] | range, texts: Sequence[str | bytes | None], kept: Iterable[Any]
    ) -> pa.RecordBatch:
        """A batch of Python values. Raises ValueError or TypeError for what is no Unicode text."""
        strings = [pa.array(values, pa.large_string()) for values in (texts, *kept)]
        return pa.RecordBatch.from_arrays([pa.array(np.asarray(rows, np.int64)), *strings], schema=self.schema)

    def in_batches(self, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
        """Rows that are known to be right, in batches of bounded size."""
        waiting: list[Row] = []
        size = 0
        for row in rows:
            length = sum(len(text) for text in (row[1], *row[2]) if text)
            if waiting and (len(waiting) == MAX_ROWS or size + length > CHUNK):
                yield self._flush(waiting)
                waiting, size = [], 0
            waiting.append(row)
            size += length
        if waiting:
            yield self._flush(waiting)

    def _flush(self, rows: Sequence[Row]) -> pa.RecordBatch:
        numbers, texts, kept = zip(*rows, strict=True)
        return self.batch(numbers, texts, zip(*kept, strict=True))

    def of_record(self, record: Any) -> tuple[str | None, list[str | None]]:
        """Text and kept columns of a JSON value. Raises BadRowError where it is no object or its text no text."""
        if not isinstance(record, dict):
            raise BadRowError(f"a JSON {type(record).__name__}; expected an object with the column {self.field!r}")
        try:
            text = pick(record, self.field)
        except KeyError:
            raise BadRowError(f"no column {self.field!r}; it has {listed(record)}") from None
        if text is not None and not isinstance(text, str):
            raise BadRowError(f"column {self.field!r} is not text but {type(text).__name__}")
        return checked(text, self.field), [checked(self.kept_text(record, name), name) for name in self.kept]

    @staticmethod
    def kept_text(record: Mapping[str, Any], name: str) -> str | None:
        """A kept column of a JSON object; one that it lacks is null."""
        try:
            return as_text(pick(record, name))
        except KeyError:
            return None
        except RecursionError:
            raise BadRowError(f"column {name!r} is nested too deep to be written") from None


def pick(record: Mapping[str, Any], name: str) -> Any:
    """The value of this name, or else at this dotted path; below null is null. Raises KeyError where there is none."""
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if value is None:
            return None
        if not isinstance(value, dict):
            raise KeyError(name)
        value = value[part]
    return value


def as_text(value: Any) -> str | None:
    """A kept value as text: compact JSON unless it is text or null; times as ISO 8601, bytes as base64."""
    match value:
        case None | str():
            return value
        case int() | float():
            return json.dumps(value)  # NaN and integers of any length stay what they are
        case date() | time():
            return value.isoformat()
        case bytes():
            return b64encode(value).decode()
        case dict() | list() | tuple():
            try:
                return orjson.dumps(value, default=as_text).decode()
            except TypeError:  # a long integer, a lone surrogate, deep nesting
                return json.dumps(value, default=as_text, separators=(",", ":"))
    return str(value)


def checked(text: str | None, column: str) -> str | None:
    """The same text. Raises BadRowError where it is not Unicode, or was decoded from bytes that are not UTF-8."""
    try:
        if text and not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        found = f"a lone surrogate U+{code:04X}"
        if 0xDC80 <= code <= 0xDCFF:  # how "surrogateescape" decodes a wrong byte
            found = f"not UTF-8: byte 0x{code - 0xDC00:02x}, or {found},"
        where = f"character {error.start}, byte offset {len(error.object[: error.start].encode())}"
        raise BadRowError(f"column {column!r} is not Unicode: {found} at {where}") from None
    return text


def not_utf8(data: bytes) -> str | None:
    """What is wrong with bytes that are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{data[error.start]:02x} at byte offset {error.start}"
    return None


def listed(names: Iterable[str]) -> str:
    """Column names for a message."""
    names = [repr(name) for name in names]
    return (
        ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if names else "no columns"
    )

"""JSON: an array of objects, JSON Lines, or objects printed over several lines."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from prep_assets.errors import SourceError
from prep_assets.sources.compression import BOM, chunks, line_blocks
from prep_assets.sources.files import SourceFile
from prep_assets.sources.jsonl import DECODER, parse, read_jsonl
from prep_assets.sources.rows import BadRowError, Columns, Report, Row

SPACE = re.compile(r"[ \t\n\r]*")
SLACK = 16  # characters: an error this close to the end of what was read may be a value that goes on


def read_json(file: SourceFile, columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file. Of an array, row is the element's index and where is `row 7`, from 0; else as of JSON Lines.

    Raises SourceError where an array is not valid JSON: nobody can say where the next element begins.
    """
    if _is_lines(file):
        yield from read_jsonl(file, columns, report)
    else:
        yield from columns.in_batches(_read_rows(file, columns, report))


def _read_rows(file: SourceFile, columns: Columns, report: Report) -> Iterator[Row]:
    for row, record in enumerate(_Values(file)):
        try:
            text, kept = columns.of_record(record)
        except BadRowError as error:
            report(row, f"row {row}", str(error))
        else:
            yield row, text, kept


def _is_lines(file: SourceFile) -> bool:
    """Whether a file is read line by line: no array, and its first line is a value, or no value begins there."""
    for _, lines in line_blocks(file):
        for line in filter(bytes.strip, lines):
            if line.lstrip().startswith(b"["):
                return False
            try:
                parse(line)
            except BadRowError:
                break
            return True
        else:
            continue
        break
    else:
        return True
    try:
        next(iter(_Values(file)))
    except SourceError:
        return True  # JSON Lines whose first line is wrong
    return False


class _Values:
    """The elements of an array, or else the values that follow each other; memory as much as the longest."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._chunks = chunks(file)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._at = 0  # in _text
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        self._read(1)
        self._text = self._text.removeprefix(BOM.decode())
        row = 0
        is_array = self._skip("[")
        if is_array and self._skip("]"):
            return self._end(row)
        while is_array or self._peek():
            yield self._value(row)
            row += 1
            if is_array and not self._skip(","):
                if not self._skip("]"):
                    raise self._wrong(row, "expected ',' or ']'")
                break
        return self._end(row)

    def _value(self, row: int) -> Any:
        self._peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._wrong(row, "nested too deep") from None
            except json.JSONDecodeError as error:
                goes_on = error.msg.startswith("Unterminated") or error.pos > len(self._text) - SLACK
                if self._ended or not goes_on:
                    raise self._wrong(row, error.msg, goes_on) from None
            else:
                if end < len(self._text) or self._ended:  # a number at the very end may go on
                    self._at = end
                    return value
            self._read(len(self._text) - self._at)  # twice as much each time: linear in all

    def _read(self, size: int) -> None:
        """Reads at least `size` more characters, or to the end."""
        parts = [self._text[self._at :]]
        while size > 0 and not self._ended:
            chunk = next(self._chunks, b"")
            self._ended = not chunk
            parts.append(self._decoder.decode(chunk, self._ended))
            size -= len(parts[-1])
        self._text, self._at = "".join(parts), 0

    def _peek(self) -> str:
        """The next character that is no space; nothing at the end."""
        while True:
            match = SPACE.match(self._text, self._at)
            assert match
            self._at = match.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._read(1)

    def _skip(self, character: str) -> bool:
        found = self._peek() == character
        self._at += found
        return found

    def _end(self, row: int) -> None:
        if self._peek():
            raise self._wrong(row, "more after its end")

    def _wrong(self, row: int, cause: str, goes_on: bool = False) -> SourceError:
        kind = "damaged or cut short, not valid JSON" if goes_on or not self._peek() else "not valid JSON"
        return SourceError(
            f"{self._file.path}: row {row}: {kind}: {cause}; restore the file, or write it as JSON Lines"
        )

"""JSON Lines: one object a line."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa

from prep_assets.sources.compression import line_blocks
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import BadRowError, Columns, Report, Row, not_utf8, pick


def read_jsonl(file: SourceFile, columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file; a blank line is none but counts. row: index of the line; where: `line 3`, from 1."""
    for first, lines in line_blocks(file):
        try:
            batch = _read_fast(first, lines, columns)
        except (BadRowError, ValueError, TypeError, KeyError, RecursionError):  # some line is not as most are
            yield from columns.in_batches(_read_rows(first, lines, columns, report))
        else:
            yield batch


def _read_fast(first: int, lines: Sequence[bytes], columns: Columns) -> pa.RecordBatch:
    """The rows of lines that orjson reads and that all have text or null, which pyarrow checks as it copies."""
    field = columns.field
    records = list(map(orjson.loads, lines))
    texts = [pick(record, field) for record in records] if "." in field else [record[field] for record in records]
    if columns.kept and not all(map(_is_exact, records)):
        raise ValueError("orjson may have rounded")
    kept = [[columns.kept_text(record, name) for record in records] for name in columns.kept]
    return columns.batch(range(first, first + len(texts)), texts, kept)


def _read_rows(first: int, lines: Sequence[bytes], columns: Columns, report: Report) -> Iterator[Row]:
    for row, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            text, kept = columns.of_record(parse(line))
        except BadRowError as error:
            report(row, f"line {row + 1}", not_utf8(line) or str(error))
        else:
            yield row, text, kept


def parse(line: bytes) -> Any:
    """A line's value. What orjson refuses (NaN, long integers, a lone surrogate) may be in a column nobody reads.

    Bytes that are not UTF-8 become lone surrogates, refused where they are read. Raises BadRowError.
    """
    with suppress(ValueError, RecursionError):
        if _is_exact(record := orjson.loads(line)):
            return record
    try:
        return DECODER.decode(line.decode("utf-8", "surrogateescape"))
    except json.JSONDecodeError as error:
        raise BadRowError(f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise BadRowError("not valid JSON for any reader here: nested too deep") from None


def _int(digits: str) -> int | float:
    return int(digits) if len(digits) < 4300 else float(digits)  # Python refuses longer ones


def _is_exact(value: Any) -> bool:
    """Whether a value holds no float so large that it may be an integer beyond 64 bits to orjson."""
    match value:
        case float():
            return abs(value) < 2**63
        case dict():
            return all(map(_is_exact, value.values()))
        case list():
            return all(map(_is_exact, value))
    return True


DECODER = json.JSONDecoder(parse_int=_int)

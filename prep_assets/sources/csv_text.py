"""CSV and TSV with a header row."""

import csv
import sys
from collections.abc import Iterator

import pyarrow as pa

from prep_assets.errors import SourceError
from prep_assets.sources.compression import line_blocks
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import BadRowError, Columns, Report, Row, checked, listed


def read_csv(file: SourceFile, columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file, an empty field as "". row: index of the row below the header; where: its first line, from 1.

    Raises SourceError where the header lacks the text column, or a quote never closes: it swallows all that follows.
    """
    yield from columns.in_batches(_read_rows(file, columns, report))


def _lines(file: SourceFile) -> Iterator[str]:
    for _, lines in line_blocks(file):
        for line in lines:
            yield line.decode("utf-8", "surrogateescape") + "\n"  # refused where it is in a column that is read


def _read_rows(file: SourceFile, columns: Columns, report: Report) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)  # of the process: no row is too long
    reader = csv.reader(_lines(file), delimiter="\t" if file.format == "tsv" else ",", strict=True)
    header: list[str] | None = None
    row = 0
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
            if not fields:  # a blank line
                continue
            if header is None:
                header = fields
                at, kept_at = _place(file, columns, header)
                continue
            if len(fields) != len(header):
                raise BadRowError(f"{len(fields)} fields; the header has {len(header)}")
            text = checked(fields[at], columns.field)
            kept = [None if i is None else checked(fields[i], n) for i, n in zip(kept_at, columns.kept, strict=True)]
        except StopIteration:
            return
        except (csv.Error, BadRowError) as error:
            if header is None or "unexpected end" in str(error):
                what = "a quote never closes" if header else "no header row"
                raise SourceError(
                    f"{file.path}: line {line}: {what}: not valid CSV: {error}; correct the file"
                ) from error
            report(row, f"line {line}", str(error) if isinstance(error, BadRowError) else f"not valid CSV: {error}")
        else:
            yield row, text, kept
        row += 1


def _place(file: SourceFile, columns: Columns, header: list[str]) -> tuple[int, list[int | None]]:
    """Where the text and the kept columns stand in a row."""
    if (count := header.count(columns.field)) != 1:
        found = "no column" if not count else f"{count} columns"
        raise SourceError(f"{file.path}: {found} {columns.field!r}; it has {listed(header)}; correct `dataset.field`")
    return header.index(columns.field), [header.index(it) if it in header else None for it in columns.kept]

"""Plain text: a line is a document."""

from collections.abc import Iterator

import pyarrow as pa

from prep_assets.sources.compression import line_blocks
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import Columns, Report, not_utf8


def read_text(file: SourceFile, columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    r"""The lines of a file, each without a final "\r"; an empty one is an empty text. It has no columns: kept are null.

    row: index of the line; where: `line 3`, from 1.
    """
    for first, lines in line_blocks(file):
        lines = [line.removesuffix(b"\r") for line in lines]
        rows = list(range(first, first + len(lines)))
        try:
            batch = _batch(rows, lines, columns)
        except pa.ArrowInvalid:
            wrong = [not_utf8(line) for line in lines]
            for row, cause in zip(rows, wrong, strict=True):
                if cause:
                    report(row, f"line {row + 1}", cause)
            right = [i for i, cause in enumerate(wrong) if cause is None]
            batch = _batch([rows[i] for i in right], [lines[i] for i in right], columns)
        if len(batch):
            yield batch


def _batch(rows: list[int], lines: list[bytes], columns: Columns) -> pa.RecordBatch:
    return columns.batch(rows, lines, [[None] * len(lines)] * len(columns.kept))  # pyarrow checks UTF-8

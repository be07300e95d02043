"""A file of any format -> its documents as record batches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from prep_assets.errors import SourceError
from prep_assets.sources.arrow import read_arrow
from prep_assets.sources.csv_text import read_csv
from prep_assets.sources.files import SourceFile
from prep_assets.sources.json_values import read_json
from prep_assets.sources.jsonl import read_jsonl
from prep_assets.sources.parquet import read_parquet
from prep_assets.sources.rows import Columns, Report
from prep_assets.sources.text import read_text

READERS: Mapping[str, Callable[[SourceFile, Columns, Report], Iterator[pa.RecordBatch]]] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "csv": read_csv,
    "tsv": read_csv,
    "text": read_text,
}


@dataclass(frozen=True)
class BadRow:
    """A row that gives no document. row: index in the file, from 0; where: `line 3` (from 1) or `row 7` (from 0)."""

    file: str
    row: int
    where: str
    cause: str


def read_documents(
    file: SourceFile,
    field: str,
    keep_columns: Sequence[str] = (),
    on_bad_row: Callable[[BadRow], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, in order, in batches of at most 8,192 rows and about 16 MiB of text (or one longer text).

    field: the text's column, exact or a dotted path into nested ones; plain text has none, its lines are the texts.
    Batches hold, by position: row int64, index in the file; text large_string, valid UTF-8, null where the row's is;
    each kept column as large_string, null where the file lacks it.
    on_bad_row: gets each bad row, which is then left out; without it the first raises SourceError.
    Raises SourceError in any case for a damaged file, and for a columnar one without such a text column.
    """

    def report(row: int, where: str, cause: str) -> None:
        if on_bad_row is None:
            raise SourceError(
                f"{file.path}: {where}: {cause}; correct it, or leave bad rows out with `dataset.on_bad_row: skip`"
            )
        on_bad_row(BadRow(file.name, row, where, cause))

    yield from READERS[file.format](file, Columns(field, tuple(keep_columns)), report)

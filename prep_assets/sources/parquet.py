"""Parquet: only the wanted columns' pages are read."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from prep_assets.sources.columnar import Places, read_columns
from prep_assets.sources.compression import reading
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import MAX_ROWS, MAX_TEXT, Columns, Report


def read_parquet(file: SourceFile, columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file; see read_columns. Raises SourceError for a damaged file or one without the text column."""
    with reading(file):
        parquet = pq.ParquetFile(file.path, memory_map=True, page_checksum_verification=True)
    with parquet:
        places = Places(file, parquet.schema_arrow, columns)
        yield from read_columns(file, _batches(file, parquet, places), columns, places, report)


def _batches(file: SourceFile, parquet: pq.ParquetFile, places: Places) -> Iterator[pa.RecordBatch]:
    names = [".".join(path) for path in places.all]
    measured = 1.0  # bytes a row, of the last batch: a dictionary's pages do not show how long its values are
    for group in range(parquet.metadata.num_row_groups):
        about = parquet.metadata.row_group(group)
        leaves = (about.column(i) for i in range(about.num_columns))
        size = sum(it.total_uncompressed_size for it in leaves if it.path_in_schema in names)
        length = max(measured, size / max(1, about.num_rows))
        rows = max(1, min(MAX_ROWS, int(MAX_TEXT / length)))
        with reading(file):
            for batch in parquet.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                measured = batch.nbytes / max(1, len(batch))
                yield batch

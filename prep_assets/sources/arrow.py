"""Arrow IPC, the file format and the stream format, through the memory map."""

from collections.abc import Iterator

import pyarrow as pa

from prep_assets.arrow_stream import END
from prep_assets.errors import SourceError
from prep_assets.sources.columnar import Places, read_columns
from prep_assets.sources.compression import reading
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import Columns, Report

MAGIC = b"ARROW1"  # of the file format; a stream begins with its schema


def read_arrow(file: SourceFile, columns: Columns, report: Report) -> Iterator[pa.RecordBatch]:
    """The rows of a file; see read_columns. Raises SourceError for a damaged file or one without the text column."""
    with reading(file):
        source = pa.memory_map(str(file.path))
    with source:
        with reading(file):
            is_file = source.read(len(MAGIC)) == MAGIC
            source.seek(0)
            schema = (pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)).schema
        places = Places(file, schema, columns)
        wanted = sorted({schema.get_field_index(path[0]) for path in places.all})
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        batches = _of_file(file, source, options) if is_file else _of_stream(file, source, options)
        yield from read_columns(file, batches, columns, places, report)


def _of_file(file: SourceFile, source: pa.MemoryMappedFile, options: pa.ipc.IpcReadOptions) -> Iterator[pa.RecordBatch]:
    with reading(file):
        reader = pa.ipc.open_file(source, options=options)
        yield from map(reader.get_batch, range(reader.num_record_batches))


def _of_stream(
    file: SourceFile, source: pa.MemoryMappedFile, options: pa.ipc.IpcReadOptions
) -> Iterator[pa.RecordBatch]:
    with reading(file):
        source.seek(0)
        yield from pa.ipc.open_stream(source, options=options)
        end, size = source.tell(), source.size()
        mark = source.read_at(len(END), max(0, end - len(END)))
    if mark != END:  # pyarrow takes a stream that ends with a batch for a whole one
        raise SourceError(f"{file.path}: damaged or cut short: no end mark after {end} bytes; restore the file")
    if end < size:
        raise SourceError(f"{file.path}: damaged: {size - end} bytes after its end mark; is it several streams in one?")

"""Arrow IPC streams on disk: written through the payload's hook, read through the memory map, checked before use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from prep_assets.errors import DamagedFileError
from prep_assets.payload import create

END = b"\xff\xff\xff\xff\0\0\0\0"  # a stream cut at a batch's end would otherwise read as a shorter one


@contextmanager
def new_stream(path: Path, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchStreamWriter]:
    """A writer of record batches of this schema into a new file."""
    with create(path) as stream, pa.ipc.new_stream(pa.PythonFile(stream, "w"), schema) as writer:
        yield writer


def read_stream(path: Path, schema: pa.Schema, *, check_all: bool = True) -> Iterator[pa.RecordBatch]:
    """The batches of a file that new_stream wrote; their buffers are views of the mapped file.

    check_all: False for who uses a few rows, and validates these: then nothing else of the file is read.
    Raises DamagedFileError for a file that is missing, cut, of another schema, or holds impossible offsets.
    """
    try:
        with pa.memory_map(str(path)) as file:
            size = file.size()
            if size < len(END) or file.read_at(len(END), size - len(END)) != END:
                raise DamagedFileError(f"{path}: {size} bytes without an end mark; it was cut short")
            reader = pa.ipc.open_stream(file)
            if not reader.schema.equals(schema):
                raise DamagedFileError(
                    f"{path}: columns {reader.schema.names}; expected {schema.names} and their types"
                )
            for batch in reader:
                if check_all:
                    batch.validate(full=True)
                yield batch
    except FileNotFoundError as error:
        raise DamagedFileError(f"{path}: missing") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"{path}: damaged: {' '.join(str(error).split())[:200]}") from error

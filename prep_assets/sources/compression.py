"""A file's bytes and lines, decompressed, in bounded memory."""

import bz2
import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO

import pyarrow as pa

from prep_assets.errors import SourceError, StorageError
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import CHUNK, MAX_ROWS

BOM = b"\xef\xbb\xbf"
DECODERS: dict[str, Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]] = {
    "bz2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}

CODECS = {"gz": "gzip", "zst": "zstd"}


@contextmanager
def reading(file: SourceFile) -> Iterator[None]:
    """Says of what goes wrong inside which file is at fault: SourceError for its bytes, StorageError for the disk."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{file.path}: missing; it was there when the source was listed") from error
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno:
            raise StorageError(f"{file.path}: {error.strerror}; it cannot be read") from error
        cause = " ".join(str(error).split())[:300]
        advice = "restore the file"
        if "too much memory" in cause:  # what zstd says of `--long`
            advice = "if it was compressed with a window above 128 MiB, compress it again without `--long`"
        raise SourceError(f"{file.path}: damaged or cut short: {cause}; {advice}") from error


def chunks(file: SourceFile) -> Iterator[bytes]:
    """The file's bytes, of all members and frames, at most CHUNK at once. Raises SourceError where it is damaged."""
    with reading(file), file.path.open("rb", buffering=0) as raw:
        if file.compression and not file.size:
            raise EOFError(f"an empty file is not .{file.compression}")
        if file.compression is None:
            yield from iter(lambda: raw.read(CHUNK), b"")
        elif file.compression in DECODERS:
            yield from _members(raw, DECODERS[file.compression])
        else:
            with pa.CompressedInputStream(pa.PythonFile(raw, "r"), CODECS[file.compression]) as stream:
                yield from iter(lambda: stream.read(CHUNK), b"")


def _members(raw: FileIO, new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> Iterator[bytes]:
    """All streams of a file: Python's own readers take damage at the head of a further one for the file's end."""
    decoder = new()
    while True:
        data = b""
        if decoder.eof:
            data = decoder.unused_data.lstrip(b"\0")  # xz pads between streams
            while not data:
                if not (data := raw.read(CHUNK)):
                    return
                data = data.lstrip(b"\0")
            decoder = new()
        elif decoder.needs_input and not (data := raw.read(CHUNK)):
            raise EOFError("it ends within a compressed stream")
        if out := decoder.decompress(data, CHUNK):
            yield out


def line_blocks(file: SourceFile) -> Iterator[tuple[int, list[bytes]]]:
    r"""Lines in blocks of at most MAX_ROWS and about CHUNK bytes, each block with the index of its first line.

    A line ends at b"\n" alone and is without it, of any length; one longer than CHUNK is a block of its own. A byte
    order mark at the file's start is left out; after a final newline is no line.
    """
    first = 0
    begun: list[bytes] = []  # of a line that has not ended yet
    for chunk in chunks(file):
        lines = chunk.split(b"\n")
        begun.append(lines[0])
        if len(lines) == 1:
            continue
        lines[0] = b"".join(begun)
        begun = [lines.pop()]
        if first == 0:
            lines[0] = lines[0].removeprefix(BOM)
        begin = 0
        while begin < len(lines):
            end = begin + 1 if len(lines[begin]) > CHUNK else begin + MAX_ROWS
            yield first + begin, lines[begin:end]
            begin = end
        first += len(lines)
    last = b"".join(begun)
    if last := last if first else last.removeprefix(BOM):
        yield first, [last]

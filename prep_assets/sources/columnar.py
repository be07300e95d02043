"""Columns of Arrow data: where they lie, texts checked, pieces of bounded size."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prep_assets.errors import SourceError
from prep_assets.sources.compression import reading
from prep_assets.sources.files import SourceFile
from prep_assets.sources.rows import MAX_ROWS, MAX_TEXT, Columns, Report, as_text, listed, not_utf8

VIEWS: dict[pa.DataType, pa.DataType] = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}
Path = list[str]  # of a column: its name, then the names of the fields below


class Places:
    """Where a file's schema has the wanted columns. Raises SourceError where the text column is missing or not text."""

    def __init__(self, file: SourceFile, schema: pa.Schema, columns: Columns) -> None:
        field = find(schema, columns.field)
        if field is None:
            found = f"no column {columns.field!r}; it has {listed(schema.names)}"
            raise SourceError(f"{file.path}: {found}; correct `dataset.field`")
        if not _is_text(kind := _type(schema, field)):
            raise SourceError(
                f"{file.path}: column {columns.field!r} is not text but {kind}; name a text column, or cast it"
            )
        self.field = field
        self.kept = [find(schema, name) for name in columns.kept]
        self.all = [path for path in (self.field, *self.kept) if path]


def find(schema: pa.Schema, name: str) -> Path | None:
    """The column of exactly this name, or else the one at this dotted path."""
    if schema.names.count(name) == 1:
        return [name]
    path = name.split(".")
    fields: dict[str, pa.DataType] = dict(zip(schema.names, schema.types, strict=True))
    for part in path[:-1]:
        kind = fields.get(part)
        if not isinstance(kind, pa.StructType):
            return None
        fields = {field.name: field.type for field in kind}
    return path if path[-1] in fields and len(path) > 1 else None


def _type(schema: pa.Schema, path: Path) -> pa.DataType:
    kind = schema.field(path[0]).type
    for part in path[1:]:
        kind = kind.field(part).type
    return kind


def _is_text(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _is_text(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return _is_text(kind.value_type)
    return kind in VIEWS or pa.types.is_null(kind)


def read_columns(
    file: SourceFile, batches: Iterable[pa.RecordBatch], columns: Columns, places: Places, report: Report
) -> Iterator[pa.RecordBatch]:
    """The wanted columns of a file's batches, in pieces of bounded size. row: index in the file; where: `row 7`.

    Texts that can stay where they are (a mapped file, a decoded page) are not copied.
    Raises SourceError where buffers are not what their type needs.
    """
    first = 0
    for whole in batches:
        for begin in range(0, len(whole), MAX_ROWS):
            wrong: dict[int, str] = {}
            with reading(file):
                batch = _wanted(first + begin, whole.slice(begin, MAX_ROWS), columns, places, wrong)
            for row, cause in sorted(wrong.items()):
                report(row, f"row {row}", cause)
            if wrong:
                batch = batch.filter(pc.invert(pc.is_in(batch.column(0), pa.array(wrong, pa.int64()))))
            yield from _pieces(batch)
        first += len(whole)


def _wanted(
    first: int, rows: pa.RecordBatch, columns: Columns, places: Places, wrong: dict[int, str]
) -> pa.RecordBatch:
    """The wanted columns of these rows; fills wrong: index in the file of each row that is not UTF-8 -> cause."""
    arrays = [pa.array(np.arange(first, first + len(rows)))]
    for path, name in zip((places.field, *places.kept), (columns.field, *columns.kept), strict=True):
        texts, causes = _texts(rows, path) if path else (pa.nulls(len(rows), pa.large_string()), [])
        arrays.append(texts)
        wrong.update({row: f"column {name!r}: {cause}" for row, cause in enumerate(causes, first) if cause})
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch cut where its text would exceed MAX_TEXT; a longer text is a piece of its own."""
    text = batch.column(1)
    data = text.buffers()[1]
    if not len(batch) or data is None:
        return
    offsets = np.frombuffer(data, np.int64, len(text) + 1, text.offset * 8)
    begin = 0
    while begin < len(batch):
        end = int(np.searchsorted(offsets, offsets[begin] + MAX_TEXT, side="right")) - 1
        end = max(begin + 1, end)
        yield batch.slice(begin, end - begin)
        begin = end


def _texts(rows: pa.RecordBatch, path: Path) -> tuple[pa.Array, list[str | None]]:
    """A column as large_string, and if some rows are not UTF-8, what is wrong with each (those are then null)."""
    column = rows.column(path[0])
    if path[1:]:
        column = pc.struct_field(column, path[1:])  # null where a struct above is
    if not _is_text(column.type):
        column.validate(full=True)
        return pa.array([as_text(value) for value in column.to_pylist()], pa.large_string()), []
    raw = _bytes(column)
    texts = raw.view(pa.large_string())
    try:
        texts.validate(full=True)  # no reader of Arrow's checks UTF-8
    except pa.ArrowInvalid:
        values = raw.to_pylist()
        causes = [value and not_utf8(value) for value in values]
        right = [None if cause else value for value, cause in zip(values, causes, strict=True)]
        return pa.array(right, pa.large_string()), causes
    return texts, []


def _bytes(column: pa.Array) -> pa.Array:
    """A text column as large_binary, with offsets and indices checked, texts not yet."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _bytes(column.storage)
    if isinstance(column, pa.DictionaryArray):
        return pa.DictionaryArray.from_arrays(column.indices, _bytes(column.dictionary)).dictionary_decode()
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.large_binary())
    raw = column.view(VIEWS[kind])
    raw.validate(full=True)
    return raw.cast(pa.large_binary())

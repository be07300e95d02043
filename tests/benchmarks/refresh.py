"""What a refresh costs: some documents of many are edited, and `prep-assets prepare` runs again."""

import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from tests.benchmarks.contenders import Setting, write_recipe
from tests.benchmarks.measure import Cost, empty, measure, read_once

FILES = 256
DOCUMENT = 300  # characters, at most
SETTLED = 3  # seconds after which a file's times are trusted by the scan


def measure_edits(setting: Setting, documents: int, shards: int, edits: list[int]) -> dict[str, Any]:
    """From scratch, then after each of these numbers of edits, spread evenly over the documents."""
    folder = empty(setting.work / "runs" / "refresh")
    size = _write_source(folder / "source", setting.data, documents)
    recipe = folder / "recipe.yaml"
    write_recipe(recipe, setting, folder / "source", shards=shards, engine="auto")
    results: dict[str, Any] = {"documents": documents, "files": FILES, "shards": shards, "size": size, "edits": {}}
    results["scratch"] = asdict(_prepare(recipe))
    for count in (edit for edit in edits if edit <= documents):
        _edit(folder / "source", documents, count)
        cost = _prepare(recipe)
        results["edits"][str(count)] = asdict(cost)
        print(f"{count:6} of {documents:,}, {shards} shards: {cost.wall:.1f} s {cost.failure}", flush=True)
    return results


def _prepare(recipe: Path) -> Cost:
    time.sleep(SETTLED)
    read_once(recipe.parent / "source")
    command = [str(Path(sys.executable).with_name("prep-assets")), "prepare", "--config", str(recipe)]
    return measure(command, recipe.with_suffix(".log"))


def _write_source(folder: Path, data: Path, documents: int) -> int:
    """So many small and different documents in FILES files of lines; their text's bytes."""
    folder.mkdir()
    texts, size = _small_documents(data), 0
    for at in range(FILES):
        with (folder / f"part-{at:03d}.jsonl").open("wb") as stream:
            for _ in range(documents * at // FILES, documents * (at + 1) // FILES):
                text = next(texts)
                size += len(text.encode())
                stream.write(orjson.dumps({"text": text}) + b"\n")
    return size


def _small_documents(data: Path) -> Iterator[str]:
    seen = set()
    for path in sorted((data / "parquet").iterdir()):
        for batch in pq.ParquetFile(path).iter_batches(1000, columns=["text"]):
            for text in batch.column(0).to_pylist():
                for begin in range(0, len(text), DOCUMENT):
                    small = text[begin : begin + DOCUMENT].strip()
                    digest = hashlib.blake2b(small.encode(), digest_size=8).digest()
                    if len(small) > DOCUMENT // 4 and digest not in seen:
                        seen.add(digest)
                        yield small


def _edit(folder: Path, documents: int, count: int) -> None:
    """Appends a word to as many documents, and rewrites the files that hold them."""
    chosen: dict[int, list[int]] = {}  # file -> lines
    for edit in range(count):
        document = (2 * edit + 1) * documents // (2 * count)
        file = next(
            at for at in range(document * FILES // documents, FILES) if documents * (at + 1) // FILES > document
        )
        chosen.setdefault(file, []).append(document - documents * file // FILES)
    for file, lines in chosen.items():
        path = folder / f"part-{file:03d}.jsonl"
        rows = path.read_bytes().splitlines()
        for line in lines:
            rows[line] = orjson.dumps({"text": orjson.loads(rows[line])["text"] + f" edited with {count - 1} more"})
        path.write_bytes(b"\n".join(rows) + b"\n")

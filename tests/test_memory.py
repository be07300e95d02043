"""Anonymous memory is bounded by batches and the largest shard, not by the source."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline import WORDS, save_word_tokenizer

MEASURE = """
import re, sys, threading, time
from pathlib import Path
from tests.pipeline import make_recipe, refresh

peak, done = 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.005):
        peak = max(peak, int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))

thread = threading.Thread(target=watch)
thread.start()
publication = refresh(make_recipe(Path(sys.argv[1]), shards=2))
done.set()
thread.join()
print(publication.documents, peak)
"""


def peak(folder: Path, documents: int) -> int:
    """Most anonymous memory, in KiB, of a process that builds a dataset of so many short documents."""
    folder.mkdir()
    save_word_tokenizer(folder / "tokenizer.json")
    (folder / "source").mkdir()
    with (folder / "source/x.jsonl").open("w") as stream:
        for number in range(documents):
            stream.write(f'{{"text": "{WORDS[number % 8]} {number} {WORDS[number % 7]}"}}\n')
    command = [sys.executable, "-c", MEASURE, str(folder)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    published, found = map(int, done.stdout.split())
    assert published == documents
    return found


@pytest.mark.skipif(
    not Path("/proc/self/status").exists() or not re.search("RssAnon", Path("/proc/self/status").read_text()),
    reason="this system does not tell anonymous memory",
)
def test_sixteen_times_the_documents_take_little_more_memory(tmp_path: Path) -> None:
    few, many = peak(tmp_path / "few", 20_000), peak(tmp_path / "many", 320_000)
    of_documents = 320_000 * 64 // 1024  # KiB: what lookups and lengths may take
    assert many <= 1.25 * few + 32 * 1024 + of_documents

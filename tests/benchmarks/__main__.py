"""The command line: `python -m tests.benchmarks setup`, `run`, `limits`, `refresh`, `report`."""

import argparse
import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.benchmarks import corpora, refresh, report
from tests.benchmarks.contenders import CONTENDERS, LOOPS, REPOSITORY, Setting, ready, set_up
from tests.benchmarks.measure import measure, read_once
from tests.benchmarks.tokens import summarize


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path(".benchmarks"), help="the folder that holds everything")
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="tokenizers, corpora, peers in virtual environments: minutes, 20 GB")
    setup.add_argument("--corpora", type=_names(corpora.SIZES), default=list(corpora.SIZES), help="default: all")
    for name, help_text in (
        ("run", "measures all, or --only some, in turn; replaces what was measured with this corpus and tokenizer"),
        ("limits", "the bare loops on every tokenizer"),
    ):
        run = commands.add_parser(name, help=help_text)
        run.add_argument("--corpus", choices=corpora.SIZES, default="c100")
        run.add_argument("--rounds", type=int, default=3)
        run.add_argument("--workers", type=int, default=2)
        if name == "run":
            run.add_argument("--tokenizer", choices=[*corpora.TOKENIZERS, "smol"], default="llama3")
            run.add_argument("--only", type=_names(CONTENDERS), default=list(CONTENDERS), help="names, with commas")
    refreshed = commands.add_parser("refresh", help="edits some documents of many, and times what prepare takes")
    refreshed.add_argument("--documents", type=_numbers, default=[10_000, 100_000, 1_000_000])
    refreshed.add_argument("--shards", type=_numbers, default=[8, 256])
    refreshed.add_argument("--edits", type=_numbers, default=[0, 1, 10, 100, 1_000, 10_000])
    refreshed.add_argument("--tokenizer", default="llama3")
    commands.add_parser("report", help="Markdown and pictures of everything that was measured")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / ".gitignore").write_text("*\n")
    (work / "results").mkdir(exist_ok=True)
    if arguments.command == "setup":
        corpora.make_corpora(work, arguments.corpora)
        corpora.make_tokenizers(work)
        set_up(work)
    elif arguments.command == "run":
        setting = Setting(work, arguments.corpus, arguments.tokenizer, arguments.workers)
        run_all(setting, arguments.only, arguments.rounds)
    elif arguments.command == "limits":
        for tokenizer in [*corpora.TOKENIZERS, "smol"]:
            setting = Setting(work, arguments.corpus, tokenizer, arguments.workers)
            run_all(setting, list(LOOPS), arguments.rounds, kind="limits")
    elif arguments.command == "refresh":
        for documents in arguments.documents:
            for shards in arguments.shards:
                setting = Setting(work, "c1000", arguments.tokenizer)
                results = refresh.measure_edits(setting, documents, shards, arguments.edits)
                _save(work / "results" / f"refresh-{documents}-{shards}.json", {"machine": machine(), **results})
    else:
        print(report.write_report(work))


def run_all(setting: Setting, names: list[str], rounds: int, *, kind: str = "run") -> None:
    """Every contender once in each round: what else the machine does hits all of them alike."""
    texts = pq.read_table(setting.data / "parquet", columns=["text"])["text"]
    results: dict[str, Any] = {
        "corpus": setting.corpus,
        "tokenizer": setting.tokenizer,
        "workers": setting.workers,
        "documents": len(texts),
        "size": pc.sum(pc.binary_length(texts)).as_py(),
        "machine": machine(),
        "contenders": {name: {"label": CONTENDERS[name].label, "runs": []} for name in names},
    }
    path = setting.work / "results" / f"{kind}-{setting.corpus}-{setting.tokenizer}.json"
    for _ in range(rounds):
        for name in names:
            contender, output = CONTENDERS[name], setting.work / "runs" / name
            source, run = ready(contender, setting, output)
            read_once(source)
            load = os.getloadavg()[0]
            cost = measure(run.command, output / "log.txt", cwd=run.cwd, environment=run.environment)
            entry = results["contenders"][name]
            entry["reads"] = contender.reads
            entry["runs"].append(asdict(cost) | {"load": load})
            if not cost.failure:
                entry["tokens"] = summarize(contender.read(output), setting.end[1])
            print(f"{name:20} {cost.wall:7.1f} s, {cost.cpu:7.1f} CPU s {cost.failure}", flush=True)
            _save(path, results)


def machine() -> dict[str, Any]:
    """What a figure depends on, and nothing that names the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    commit = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    return {
        "processor": next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
    }


def _save(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n")


def _names(known: Iterable[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := sorted(set(names) - set(known)):
            raise argparse.ArgumentTypeError(f"found {', '.join(unknown)}; expected some of {', '.join(known)}")
        return names

    return parse


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()

"""Tables and pictures of what was measured."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.benchmarks.contenders import CONTENDERS

PAGE = "report.md"
REFERENCE = "loop-tokenizers"  # whose tokens are the right ones, in the source's order
HOW = """Each contender is given the same documents in the form that it reads best (Parquet; Megatron-LM one JSONL file;
dolma JSONL.gz), the same `tokenizer.json` and number of workers; its input is in the page cache. Wall clock, CPU
seconds and bytes written are the least of all rounds, memory the most: of all its processes together, at the worst
moment that was seen. Anonymous memory has shared memory in it, and no mapped files. Written are the bytes of dirty
pages, those of temporary files too. Tokens are compared by document, without end tokens."""


def write_report(work: Path) -> str:
    """`report.md` in the working folder, and a picture of each table in `results/`; returns the Markdown."""
    read = {path.stem: json.loads(path.read_text()) for path in sorted((work / "results").glob("*.json"))}
    runs = [results for name, results in read.items() if name.startswith("run-")]
    parts = [_peers(results, _fixed_costs(runs, results)) for results in runs if results["corpus"] != "tiny"]
    if limits := [results for name, results in read.items() if name.startswith("limits-")]:
        parts.append(_limits(limits))
    if refreshes := [results for name, results in read.items() if name.startswith("refresh-")]:
        parts.append(_refreshes(refreshes))
    page = "\n\n".join([HOW, *parts]) + "\n"
    (work / PAGE).write_text(page)
    python = work / "venvs" / "pictures" / "bin" / "python"
    subprocess.run([python, Path(__file__).with_name("pictures.py"), work / "results"], check=True)
    return page


def _peers(results: dict[str, Any], fixed: dict[str, float]) -> str:
    """ratios: to the first contender of ours, in the same run."""
    contenders = results["contenders"]
    best = {name: _best(entry["runs"]) for name, entry in contenders.items()}
    ours = best.get("ours")
    first = REFERENCE if best.get(REFERENCE) else next(name for name in contenders if best[name])
    expected = contenders[first]["tokens"]
    rows = []
    for name, entry in contenders.items():
        if (found := best[name]) is None:
            rows.append([entry["label"], "failed", *[""] * 8, entry["runs"][-1]["failure"][:60]])
            continue
        rows.append(
            [
                entry["label"],
                f"{found['wall']:.1f}",
                f"{found['cpu']:.1f}",
                f"{results['size'] / found['wall'] / 1e6:.1f}",
                *(f"{found[figure] / ours[figure]:.2f}" if ours else "" for figure in ("wall", "cpu")),
                f"{fixed[name]:.1f}" if name in fixed else "",
                f"{found['pss'] / 1e9:.2f}",
                f"{found['anonymous'] / 1e9:.2f}",
                f"{found['written'] / 1e6:.0f}",
                _same(entry["tokens"], expected, CONTENDERS[name].note),
            ]
        )
    title = (
        f"{results['corpus']}: {results['size'] / 1e6:,.0f} MB of text, {results['documents']:,} documents,"
        f" {expected['tokens']:,} tokens of {results['tokenizer']}, {results['workers']} workers;"
    )
    rounds = max(len(entry["runs"]) for entry in contenders.values())
    loads = [run["load"] for entry in contenders.values() for run in entry["runs"]]
    machine = results["machine"]
    head = ["", "wall s", "CPU s", "MB/s", "times our wall", "times our CPU", "tiny, s"]
    head += ["memory, GB", "of it anonymous", "written, MB", "tokens"]
    return (
        f"{title} the least of {rounds} interleaved rounds; {machine['processor']}, {machine['cpus']} CPUs,"
        f" load before a run {min(loads):.1f} to {max(loads):.1f}; {machine['date']}, {machine['commit']}\n\n"
        + _table(head, rows)
    )


def _best(runs: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The least of each figure over the runs, but the most of memory; None where every run failed."""
    whole = [run for run in runs if not run["failure"]]
    if not whole:
        return None
    least = {name: min(run[name] for run in whole) for name in ("wall", "cpu", "written")}
    return least | {name: max(run[name] for run in whole) for name in ("pss", "anonymous")}


def _fixed_costs(runs: list[dict[str, Any]], results: dict[str, Any]) -> dict[str, float]:
    """Seconds on the corpus `tiny`, where that was measured with the same tokenizer."""
    for other in runs:
        if other["corpus"] == "tiny" and other["tokenizer"] == results["tokenizer"]:
            best = {name: _best(entry["runs"]) for name, entry in other["contenders"].items()}
            return {name: found["wall"] for name, found in best.items() if found}
    return {}


def _same(found: dict[str, Any], expected: dict[str, Any], note: str) -> str:
    if found["content"] != expected["content"]:
        return f"**differ**: {note or 'unexplained'} ({found['documents']:,} documents, {found['tokens']:,} tokens)"
    notes = ["the same"]
    if found["ordered"] != expected["ordered"]:
        notes.append("other order")
    if not found["with_end"]:
        notes.append("no end token")
    return ", ".join(notes)


def _limits(all_results: list[dict[str, Any]]) -> str:
    rows = []
    for results in all_results:
        row, [reference, *others] = [results["tokenizer"]], list(results["contenders"].values())
        for entry in (reference, *others):
            found = _best(entry["runs"])
            row.append(f"{results['size'] / found['wall'] / 1e6:.1f}" if found else "refused")
            if found and entry is not reference:
                row[-1] += "" if entry["tokens"]["content"] == reference["tokens"]["content"] else " (other tokens)"
        rows.append(row)
    labels = [entry["label"] for entry in all_results[0]["contenders"].values()]
    return f"Bare loops on {all_results[0]['corpus']}, MB of text a second\n\n" + _table(["tokenizer", *labels], rows)


def _refreshes(all_results: list[dict[str, Any]]) -> str:
    rows = []
    for results in sorted(all_results, key=lambda results: (results["documents"], results["shards"])):
        for count, cost in [("from scratch", results["scratch"]), *results["edits"].items()]:
            share = cost["wall"] / results["scratch"]["wall"]
            row = [
                f"{results['documents']:,}",
                str(results["shards"]),
                count,
                f"{cost['wall']:.1f}",
                f"{cost['cpu']:.1f}",
            ]
            rows.append([*row, f"{share:.1%}", f"{cost['written'] / 1e6:.1f}", f"{cost['anonymous'] / 1e9:.2f}"])
    head = ["documents", "shards", "edited", "wall s", "CPU s", "of scratch", "written, MB", "anonymous, GB"]
    return "Refreshes with `prep-assets prepare`\n\n" + _table(head, rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

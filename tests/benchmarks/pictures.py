"""Pictures of the results, drawn in a virtual environment that holds matplotlib: pictures.py RESULTS_FOLDER"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

OURS, PEER, LOOP = "#1f77b4", "#b0b0b0", "#98c379"


def draw_peers(results: dict[str, Any], path: Path) -> None:
    """Bars: seconds of wall clock and gigabytes of anonymous memory of each contender."""
    bars = []
    for name, entry in results["contenders"].items():
        runs = [run for run in entry["runs"] if not run["failure"]]
        if runs:
            color = OURS if name.startswith(("ours", "stages")) else LOOP if name.startswith("loop") else PEER
            label = entry["label"].replace("*", "")
            bars.append((min(run["wall"] for run in runs), max(run["anonymous"] for run in runs) / 1e9, label, color))
    bars.sort(reverse=True)
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.36 * len(bars) + 1.2), sharey=True, layout="constrained")
    for axis, values, title in (
        (axes[0], [bar[0] for bar in bars], "wall clock, seconds"),
        (axes[1], [bar[1] for bar in bars], "peak anonymous memory, GB"),
    ):
        drawn = axis.barh([bar[2] for bar in bars], values, color=[bar[3] for bar in bars])
        axis.bar_label(drawn, fmt="%.1f", padding=3, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.12)
    figure.suptitle(
        f"{results['size'] / 1e6:,.0f} MB of text, {results['tokenizer']}, {results['workers']} workers", fontsize=11
    )
    figure.savefig(path, dpi=120)


def draw_refreshes(all_results: list[dict[str, Any]], path: Path) -> None:
    """Lines on log axes: time and bytes written, against the change and against the corpus's size."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    most = max(results["documents"] for results in all_results)
    for row, (figure_name, unit, title) in enumerate((("wall", 1, "seconds"), ("written", 1e6, "MB written"))):
        for shards in sorted({results["shards"] for results in all_results}):
            of_shards = sorted((it for it in all_results if it["shards"] == shards), key=lambda it: it["documents"])
            for results in of_shards:
                if results["documents"] == most:
                    counts = [int(count) for count in results["edits"] if int(count)]
                    values = [results["edits"][str(count)][figure_name] / unit for count in counts]
                    [line] = axes[row, 0].plot(counts, values, "o-", label=f"{shards} shards")
                    scratch = results["scratch"][figure_name] / unit
                    axes[row, 0].axhline(scratch, color=line.get_color(), linestyle=":", label="  from scratch")
            for count, style in (("1", "o-"), ("scratch", "s:")):
                found = [
                    (it["documents"], it["scratch"] if count == "scratch" else it["edits"].get(count))
                    for it in of_shards
                ]
                points = [(documents, cost[figure_name] / unit) for documents, cost in found if cost]
                label = f"{shards} shards, {'from scratch' if count == 'scratch' else 'one edited'}"
                axes[row, 1].plot(*zip(*points, strict=True), style, label=label)
        for axis, word in ((axes[row, 0], f"edited documents of {most:,}"), (axes[row, 1], "documents")):
            axis.set(xscale="log", yscale="log", xlabel=word, ylabel=title)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main(folder: Path) -> None:
    read = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for name, results in read.items():
        if name.startswith("run-"):
            draw_peers(results, folder / f"{name}.png")
    if refreshes := [results for name, results in read.items() if name.startswith("refresh-")]:
        draw_refreshes(refreshes, folder / "refresh.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

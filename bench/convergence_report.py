"""Draws the curves of bench/convergence.py and writes their table into docs/convergence.md.

    .cache/bench-venv/bin/python bench/convergence_report.py [--curves docs/convergence.json]

The table replaces what stands between the two marks of the page. Needs matplotlib (tools/requirements-bench.txt).
"""

import argparse
import json
import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
NAMES = {"smollm2": "SmolLM2-135M, fine-tuned", "10m": "10.8 M parameters, from scratch"}
COLOURS = {"fp32": "black", "remainder+bf16": "tab:blue", "remainder+8bit": "tab:red", "fp32+bf16": "tab:cyan",
           "fp32+8bit": "tab:orange", "remainder+fp32": "tab:gray"}


def last_loss(run):
    return run["held_out"][-1][1]


def by_states(task):
    """{states: {seed: run}}, in the order of the runs."""
    found = {}
    for run in task["runs"]:
        found.setdefault(run["states"], {})[run["seed"]] = run
    return found


def spread(values):
    return max(values) - min(values)


def draw(task, name, path):
    """Held-out loss, and below it the difference to fp32 with the same seed, against the spread of fp32's seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, differences) = pyplot.subplots(2, 1, figsize=(7, 7), sharex=True, height_ratios=(3, 2))
    states = by_states(task)
    reference = states["fp32"]
    for encoding, runs in states.items():
        for number, (seed, run) in enumerate(runs.items()):
            steps, losses = zip(*run["held_out"])
            label = encoding if number == 0 else None
            curves.plot(steps, losses, color=COLOURS[encoding], linewidth=1, label=label)
            if encoding != "fp32" and seed in reference:
                same = [loss - other for loss, (_, other) in zip(losses, reference[seed]["held_out"])]
                differences.plot(steps, same, color=COLOURS[encoding], linewidth=1, label=label)
    steps = [step for step, _ in next(iter(reference.values()))["held_out"]]
    spreads = [spread([run["held_out"][i][1] for run in reference.values()]) for i in range(len(steps))]
    differences.fill_between(steps, [-one for one in spreads], spreads, color="0.9", label="spread of fp32's seeds")
    curves.set_ylabel("held-out loss")
    curves.set_title(f"{NAMES[name]}: {len(reference)} seeds")
    differences.set_ylabel("minus fp32, same seed")
    differences.set_xlabel("step")
    for axes in (curves, differences):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def table(curves):
    lines = ["| task | states | seeds | held-out loss at the end, mean (spread of seeds) | minus fp32, mean | of one seed, largest | "
             "within the spread of fp32's seeds |", "|---|---|---|---|---|---|---|"]
    for name, task in curves.items():
        states = by_states(task)
        reference = states.get("fp32", {})
        for encoding, runs in states.items():
            losses = [last_loss(run) for run in runs.values()]
            text = f"| {NAMES[name]} | {encoding} | {len(runs)} | {statistics.mean(losses):.4f} ({spread(losses):.4f}) "
            if encoding == "fp32" or set(runs) != set(reference):
                lines.append(text + "| - | - | - |")
                continue
            paired = [last_loss(run) - last_loss(reference[seed]) for seed, run in runs.items()]
            limit = spread([last_loss(run) for run in reference.values()])
            mean = statistics.mean(paired)
            lines.append(text + f"| {mean:+.4f} | {max(paired, key=abs):+.4f} | {'yes' if abs(mean) <= limit else 'NO'} |")
    return "\n".join(lines)


def replace_table(page, text):
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=ROOT / "docs" / "convergence.json", help="of bench/convergence.py")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the PNGs and the page are")
    options = parser.parse_args()
    curves = json.loads(options.curves.read_text(encoding="utf-8"))
    curves = {name: task for name, task in curves.items() if task["runs"]}
    for name, task in curves.items():
        draw(task, name, options.docs / f"convergence-{name}.png")
    text = table(curves)
    page = options.docs / "convergence.md"
    page.write_text(replace_table(page.read_text(encoding="utf-8"), text), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

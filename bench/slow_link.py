"""Question: what do the ranks' settings save where a slow network lies between hosts, and what do they do to the loss?

Two hosts of two ranks each, in network namespaces, with a link whose rate is limited. In every round each setting trains the
same small Llama from the same weights on the same samples; rounds differ by the seed of the order. Losses are compared with the
plain run of the same round. Bytes are what the link's counters say that host 0 has sent.

    .venv/bin/python bench/slow_link.py --strata build/bin/strata --rounds 3       # as root; some minutes a round

Where hosts cannot be simulated it says so and ends with exit code 2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from simulated_hosts import SimulatedHosts, unavailable  # noqa: E402

RANKS, PER_HOST, PORT = 4, 2, 29500
SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 4, "vocab_size": 1024}
TOKENS, SAMPLES, FIRST_SEED = 64, 256, 42
WARM_UP = 3  # steps that are not timed
PLAIN = "stage 3"
TWO_HOPS = {"strata.slow_links.two_hops": True}
WEIGHTS = {"strata.slow_links.weights": "int8"}
SETTINGS = {
    "stage 1": {"strata.zero_stage": 1},
    "stage 2": {"strata.zero_stage": 2},
    PLAIN: {},
    "stage 3, nothing held": {"strata.held_layers": 0},
    # Those below hold nothing either, so that every gather of a large model is there.
    "two hops": TWO_HOPS,
    "node partition": {"strata.slow_links.node_partition": True},
    "two hops, node partition": TWO_HOPS | {"strata.slow_links.node_partition": True},
    "weights int8": WEIGHTS,
    "gradients int8": {"strata.slow_links.gradients": "int8"},
    "gradients int4": {"strata.slow_links.gradients": "int4"},
    "two hops, weights int8, gradients int8": TWO_HOPS | WEIGHTS | {"strata.slow_links.gradients": "int8"},
    "two hops, weights int8, gradients int4": TWO_HOPS | WEIGHTS | {"strata.slow_links.gradients": "int4"},
    "shard within node": {"strata.shard_within_node": True},
}
HOLDS_WHAT_FITS = ("stage 1", "stage 2", PLAIN)


def write_data(path):
    """Text that can be learnt: after each token one of four others is likely."""
    import numpy as np
    from token_file import SampleStore

    random = np.random.default_rng(0)
    followers = random.integers(2, SHAPE["vocab_size"], (SHAPE["vocab_size"], 4))
    store = SampleStore()
    for _ in range(SAMPLES):
        tokens = [int(random.integers(2, SHAPE["vocab_size"]))]
        while len(tokens) < TOKENS:
            tokens.append(int(followers[tokens[-1], random.integers(4)]))
        store.add(tokens, np.ones(TOKENS))
    store.write(path)


def words_of(options):
    pairs = [("--" + key, str(value).lower() if isinstance(value, bool) else str(value)) for key, value in options.items()]
    return [word for pair in pairs for word in pair]


def one_run(hosts, strata, folder, name, seed, steps):
    """Seconds of a step, bytes that host 0 has sent in one, and the last step's loss."""
    out = folder / "out"
    options = {
        "model": folder / "model", "data": folder / "data.tok", "output-dir": out, "overwrite-output-dir": True,
        "max-steps": steps, "max-seq-length": TOKENS, "per-device-train-batch-size": 2, "learning-rate": 1e-3,
        "lr-scheduler-type": "constant", "save-strategy": "no", "seed": seed, "strata.compute": "fp32",
        "strata.compute-threads": 1, "strata.budgets.device": "512MiB", "strata.budgets.host": "512MiB",
        **{f"strata.placement.{what}": "host" for what in ("param", "grad", "optimizer")},
        **({} if name in HOLDS_WHAT_FITS else {"strata.held_layers": 0}), **SETTINGS[name],
    }
    (out / "metrics.jsonl").unlink(missing_ok=True)
    before = hosts.sent_bytes(0)
    logs, ranks = [folder / f"rank{rank}.txt" for rank in range(RANKS)], []
    for rank in range(RANKS):
        variables = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank % PER_HOST, "LOCAL_WORLD_SIZE": PER_HOST,
                     "MASTER_ADDR": hosts.address(0), "MASTER_PORT": PORT}
        with open(logs[rank], "w") as log:
            ranks.append(hosts.popen(rank // PER_HOST, [strata, "train", *words_of(options)], stdout=log, stderr=log,
                                     env=os.environ | {key: str(value) for key, value in variables.items()}))
    try:
        codes = [rank.wait(1800) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(codes):
        raise RuntimeError(f"{name}: exit codes {codes}\n" + "\n".join(log.read_text() for log in logs))
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    return {"seconds": statistics.median(line["step_seconds"] for line in lines[WARM_UP:]),
            "bytes": (hosts.sent_bytes(0) - before) / steps, "loss": lines[-1]["loss"]}


def summary(rounds):
    """{setting: medians over the rounds, and what each differs from the plain run of its round}."""
    rows = {}
    for name in rounds[0]["runs"]:
        runs = [a_round["runs"][name] for a_round in rounds]
        plains = [a_round["runs"][PLAIN] for a_round in rounds]
        rows[name] = {
            "seconds": statistics.median(run["seconds"] for run in runs),
            "bytes": statistics.median(run["bytes"] for run in runs),
            "loss": [run["loss"] for run in runs],
            "of_plain_seconds": [run["seconds"] / plain["seconds"] for run, plain in zip(runs, plains)],
            "loss_beside_plain": [run["loss"] - plain["loss"] for run, plain in zip(runs, plains)],
        }
    return rows


def table(rows, steps):
    lines = [f"| setting | step, s | of stage 3 | MB a step over the link | loss after {steps} steps, beside stage 3 |",
             "|---|---|---|---|---|"]
    for name, row in rows.items():
        ratio = statistics.median(row["of_plain_seconds"])
        apart = ", ".join(f"{difference:+.4f}" for difference in row["loss_beside_plain"])
        lines.append(f"| {name} | {row['seconds']:.2f} | {ratio:.2f} | {row['bytes'] / 1e6:.1f} | {apart} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strata", type=Path, default=ROOT / "build/bin/strata")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--mbit", type=int, default=200, help="rate of the link")
    parser.add_argument("--only", action="append", choices=SETTINGS, help="a setting; may be repeated; default all")
    parser.add_argument("--out", type=Path, help="JSON of all runs")
    arguments = parser.parse_args()
    reason = unavailable()
    if reason:
        print(f"slow_link: cannot simulate hosts: {reason}", file=sys.stderr)
        return 2
    if arguments.steps <= WARM_UP:
        parser.error(f"--steps: more than {WARM_UP}, which are not timed")
    names = [name for name in SETTINGS if not arguments.only or name == PLAIN or name in arguments.only]
    rounds = []
    with tempfile.TemporaryDirectory() as text, SimulatedHosts() as hosts:
        folder = Path(text)
        subprocess.run([sys.executable, ROOT / "tools/tiny_models.py", "--out", folder / "model", "--kind", "llama",
                        *[word for key, value in SHAPE.items() for word in ("--set", f"{key}={value}")]], check=True)
        write_data(folder / "data.tok")
        hosts.limit_rate(arguments.mbit)
        for number in range(arguments.rounds):
            seed = FIRST_SEED + number
            # In turns from another beginning: what changes on the machine meets all.
            order = names[number % len(names):] + names[:number % len(names)]
            runs = {}
            for name in order:
                runs[name] = one_run(hosts, arguments.strata.resolve(), folder, name, seed, arguments.steps)
                print(f"seed {seed}, {name}: {json.dumps(runs[name])}", file=sys.stderr, flush=True)
            rounds.append({"seed": seed, "runs": {name: runs[name] for name in names}})
    rows = summary(rounds)
    result = {"mbit": arguments.mbit, "steps": arguments.steps, "shape": SHAPE, "hosts": 2, "ranks": RANKS,
              "rounds": rounds, "summary": rows}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(rows, arguments.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())

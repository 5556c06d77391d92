"""Question: what does a step of several ranks cost, beside PyTorch's FSDP2 and DeepSpeed ZeRO-3 with the same model and ranks?

Four jobs of N processes take turns, with nothing else running: ours in ZeRO stage 3, ours for its computing alone, the other
engine, and transformers' forward and backward alone, which each process takes for itself at the same time as the others. Every
process is bound to its part of the CPUs and has as many threads as CPUs, on both sides. The same Llama, tokens, products and
recomputation of every block; clipping on both sides; collectives over the loopback of this machine.

    tools/setup_bench.sh
    .cache/bench-venv/bin/python bench/ranks_vs_peers.py --dir DIR [--ranks 2] [--shape 134m] [--rounds 5]

Rows are named home/peer. Home: where our states are, nvme (12 bytes a parameter, next to nothing cached) or host. Peers: fsdp2
(bench/fsdp2_worker.py says with which settings; its states are in memory in both rows) and deepspeed (parameters and states on
NVMe, or offloaded to memory). "CPU s" are the processor seconds of a step, which a busy machine stretches less than the time;
where the kernel works for a process in threads of its own (io_uring, sockets) they are missing. "Exposed" is a step less computing alone of the same round; a time is that of the slowest rank, peak
resident memory that of the largest process. Prints a table on stderr and one JSON object on stdout:
{row: {...} or {"skipped": why}, "ranks", "shape", "tokens": of a rank, "rounds", "load_before", "load_after"}.
"""

import argparse
import json
import os
import tempfile

from rank_sides import ROWS, RankSides, memory_need
from step_rows import median_and_mad, rounds_of, say, summary, why_not
from step_sides import GIB, ROOT, SHAPES, SIDES, buffer_settings, memory_available


def row_of(samples, peaks, about, ranks):
    result = summary(samples, peaks, about)
    for side in ("ours", "theirs"):
        result[side]["cpu_seconds"] = median_and_mad([one["cpu_seconds"] for one in samples[side]])
        result[side]["compute_cpu_seconds"] = median_and_mad([one["cpu_seconds"] for one in samples[side + "_compute"]])
    result["cpu_ratio"] = median_and_mad(
        [b["cpu_seconds"] / a["cpu_seconds"] for a, b in zip(samples["ours"], samples["theirs"])])
    result["ours"]["sent_bytes_per_rank"] = samples["ours"][-1]["sent_bytes"] // ranks
    return result


def measure(options, sides, row):
    need, available = memory_need(row, sides.shape, sides.ranks), memory_available()
    if need > available and not options.unchecked:
        return {"skipped": f"needs about {need / GIB:.1f} GiB of memory, {available / GIB:.1f} are available"}
    load = os.getloadavg()[0]
    try:
        samples, peaks, about = rounds_of(sides, row, buffer_settings(sides.shape)[0], options.rounds, (SIDES,))
    except RuntimeError as error:
        return {"skipped": f"did not run: {str(error).strip().splitlines()[-1]}"}
    return row_of(samples, peaks, about, sides.ranks) | {"load": [load, os.getloadavg()[0]]}


def table(results):
    lines = ["row              side        total s (MAD)   compute   exposed (MAD)   RSS GiB   CPU s   of it computing   load"]
    for name in (row for row in ROWS if row in results):
        row = results[name]
        if "skipped" in row:
            lines.append(f"{name:16} skipped: {row['skipped']}")
            continue
        for side in ("ours", "theirs"):
            one = row[side]
            total, exposed = (f"{one[key]['median']:.2f} ({one[key]['mad']:.2f})" for key in ("seconds", "exposed_seconds"))
            lines.append(f"{name:16} {'strata' if side == 'ours' else name.split('/')[1]:10} {total:>14} "
                         f"{one['compute_seconds']['median']:9.2f} {exposed:>15} {one['peak_rss_bytes'] / GIB:9.2f} "
                         f"{one['cpu_seconds']['median']:7.2f} {one['compute_cpu_seconds']['median']:17.2f}   "
                         f"{row['load'][0]:.1f} to {row['load'][1]:.1f}")
        ratio = row["total_ratio"]
        lines.append(f"{'':16} theirs / ours: total {ratio['median']:.2f} (MAD {ratio['mad']:.2f}, worst {min(ratio['all']):.2f}), "
                     f"CPU {row['cpu_ratio']['median']:.2f} (MAD {row['cpu_ratio']['mad']:.2f}); ours / theirs: exposed {row['exposed_ratio']:.2f}, RSS {row['peak_rss_ratio']:.2f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, help="an existing folder on the drive")
    parser.add_argument("--strata", default=os.path.join(ROOT, "build", "release", "bin", "strata"), help="the program")
    parser.add_argument("--ranks", type=int, default=2, help="processes of each job")
    parser.add_argument("--shape", choices=SHAPES, default="134m")
    parser.add_argument("--row", action="append", choices=ROWS, help="again for another (default all)")
    parser.add_argument("--tokens", type=int, default=256, help="of a step, of each rank")
    parser.add_argument("--rounds", type=int, default=5, help="measured steps of each side")
    parser.add_argument("--unchecked", action="store_true", help="whatever memory there is")
    parser.add_argument("--json", dest="out", help="write the JSON object to this file as well, after each row")
    options = parser.parse_args()
    reason = why_not(options.strata)
    if reason is not None:
        print(json.dumps({"skipped": reason}))
        return
    results = {"ranks": options.ranks, "shape": options.shape, "tokens": options.tokens, "rounds": options.rounds,
               "load_before": os.getloadavg()}
    with tempfile.TemporaryDirectory(prefix="strata-bench-", dir=options.dir) as folder:
        sides = RankSides(options.strata, SHAPES[options.shape], folder, options.tokens, options.ranks)
        for row in options.row or ROWS:
            results[row] = measure(options, sides, row)
            results["load_after"] = os.getloadavg()
            say(table({row: results[row]}))  # at once: what comes after may fail
            if options.out:
                with open(options.out, "w", encoding="utf-8") as file:
                    json.dump(results, file, indent=2)
    say(table(results))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

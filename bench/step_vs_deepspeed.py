"""Question: what does a training step cost beyond its computing, beside DeepSpeed ZeRO-3 with the same model on the same drive?

Four processes take turns, each on all CPUs with nothing else running: ours with parameters and optimizer states on NVMe (or in
host memory), ours in memory for its computing alone, DeepSpeed with both offloaded, and transformers' forward and backward alone.
The same Llama, tokens, bf16 weights, type of products and recomputation of every block. A small sweep of DeepSpeed's buffers comes
first; the fastest is kept, and the least memory of any is what ours is compared with. Where memory or drive are too small for all
four, pairs take turns, or each runs alone, or ours without DeepSpeed; what is missing is said in words.

    tools/setup_bench.sh
    .cache/bench-venv/bin/python bench/step_vs_deepspeed.py --dir DIR [--shape 134m --shape 360m] [--rounds 5] [--hide]

"Exposed" is a step less computing alone, both of the same round. Homes of the states: nvme (ours 12 bytes a parameter, next to
nothing cached: the counted bytes are printed beside those of a step without any cache), nvme-narrow (ours 4.03 bytes), nvme-cached
(ours with a host budget that keeps half; DeepSpeed's states on NVMe have no cache), host. T_hide is the fewest tokens with a
step of at most 1.1 times its computing, of each side. Prints a table on stderr at the end and one JSON object on stdout:
{shape: {home: {...} or {"skipped": why}, "sweep": [...]}, "tokens", "rounds", "load_before", "load_after"}.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile

from step_rows import rounds_of, say, seconds_of, summary, why_not
from step_sides import GIB, GROUPINGS, HOMES, ROOT, SHAPES, Sides, buffer_settings, choose_grouping

HIDDEN_RATIO = 1.1
DEFAULT_HOMES = {"1b": ("nvme-cached", "nvme-narrow")}  # else all but the cached one


def sweep(sides, steps=3):
    """Each setting with its median seconds and peak memory, or why it does not run; the fastest first."""
    tried = []
    for buffers in buffer_settings(sides.shape):
        one = {"buffers": buffers}
        try:
            with sides.theirs("nvme", buffers) as side:
                one["seconds"] = statistics.median([side.step()["seconds"] for _ in range(steps)])
                one["peak_rss_bytes"] = side.peak_resident_bytes()
        except RuntimeError as error:
            one["failed"] = str(error).strip().splitlines()[-1]
        say(f"  sweep: {json.dumps(one)}")
        tried.append(one)
    ran = [one for one in tried if "seconds" in one]
    if not ran:
        raise RuntimeError("DeepSpeed ran with none of the settings")
    return sorted(ran, key=lambda one: one["seconds"]) + [one for one in tried if "failed" in one]


def t_hide(points):
    """As estimate_t_hide() of bench/hide.h: between two points the ratio is linear in 1 / tokens."""
    points = sorted(points)
    hidden = next((i for i, (_, ratio) in enumerate(points) if ratio <= HIDDEN_RATIO), None)
    if hidden is None:
        return {"bound": "more than", "tokens": points[-1][0], "points": points}
    if hidden == 0:
        return {"bound": "at most", "tokens": points[0][0], "points": points}
    (tokens0, ratio0), (tokens1, ratio1) = points[hidden - 1], points[hidden]
    x0, x1 = 1 / tokens0, 1 / tokens1
    x = x0 + (x1 - x0) * (ratio0 - HIDDEN_RATIO) / (ratio0 - ratio1)
    return {"bound": "between", "tokens": 1 / x, "points": points}


def find_t_hide(options, sides, home, buffers, grouping, result, known):
    """Doubles or halves the tokens of each side until one step is hidden and its neighbour is not. `known`: what was found of
    DeepSpeed, whose states on NVMe are the same in several rows."""
    least, most = max(16, options.tokens // 16), options.tokens * 16
    for side in (name for name in ("ours", "theirs") if name in result):
        if side == "theirs" and home.split("-")[0] in known:
            result[side]["t_hide"] = known[home.split("-")[0]]
            continue
        points = [(options.tokens, result[side]["ratio_to_compute"]["median"])]
        upwards = points[0][1] > HIDDEN_RATIO
        names = (side, side + "_compute")
        groups = (names,) if grouping in ("all", "pairs", "ours") else tuple((name,) for name in names)
        tokens = options.tokens
        while (points[-1][1] > HIDDEN_RATIO) == upwards:
            tokens = tokens * 2 if upwards else tokens // 2
            if not least <= tokens <= most:
                break
            other = Sides(options.strata, sides.shape, sides.folder, tokens)
            try:
                step, compute = seconds_of(rounds_of(other, home, buffers, options.hide_rounds, groups)[0], side)
            except RuntimeError as error:
                say(f"  T_hide: {tokens} tokens did not run: {str(error).strip().splitlines()[-1]}")
                break
            points.append((tokens, statistics.median([a / b for a, b in zip(step, compute)])))
            say(f"  T_hide of {side}: {tokens} tokens: {points[-1][1]:.2f} x computing")
        result[side]["t_hide"] = t_hide(points)
        if side == "theirs":
            known[home.split("-")[0]] = result[side]["t_hide"]


def table(results):
    """One row per side, shape and home."""
    lines = ["shape  states       side         total s (MAD)  compute  exposed  RSS GiB  T_hide   B/param r + w (uncached)"]
    for name in (key for key in SHAPES if key in results):
        for home in (key for key in HOMES if key in results[name]):
            row = results[name][home]
            if "skipped" in row:
                lines.append(f"{name:6} {home:12} skipped: {row['skipped']}")
                continue
            for side in (key for key in ("ours", "theirs") if key in row):
                one = row[side]
                total = f"{one['seconds']['median']:.2f} ({one['seconds']['mad']:.2f})"
                hide = one.get("t_hide")
                hide = "-" if hide is None else {"between": "", "at most": "<=", "more than": ">"}[hide["bound"]] + \
                    f"{hide['tokens']:.0f}"
                line = (f"{name:6} {home:12} {'strata' if side == 'ours' else 'deepspeed':10} {total:>16} "
                        f"{one['compute_seconds']['median']:8.2f} {one['exposed_seconds']['median']:8.2f} "
                        f"{one['peak_rss_bytes'] / GIB:8.2f} {hide:>7}")
                if side == "ours":
                    moved, all_ = one["nvme_bytes_per_parameter"], one["uncached_bytes_per_parameter"]
                    line += f"   {moved['read']:.2f} + {moved['written']:.2f} ({all_['read']:.2f} + {all_['written']:.2f})"
                lines.append(line)
            if "theirs" in row:
                lines.append(f"{'':20}deepspeed / strata: total {row['total_ratio']['median']:.2f} (MAD "
                             f"{row['total_ratio']['mad']:.2f}, worst {min(row['total_ratio']['all']):.2f}); strata / deepspeed: "
                             f"exposed {row['exposed_ratio']:.2f}, RSS {row['peak_rss_ratio']:.2f}; turns: {row['turns']}")
            lines += [f"{'':20}not {reason}" for reason in row["not_fitting"]]
    return "\n".join(lines)


def measure(options, name, folder):
    """{home: row} of a shape, and the sweep."""
    shape, homes = SHAPES[name], options.home or DEFAULT_HOMES.get(name, ("nvme", "nvme-narrow", "host"))
    sides, tried, result, known = None, [], {}, {}
    for home in homes:
        grouping, reasons = ("all", []) if options.unchecked else choose_grouping(home, shape, folder)
        if grouping is None:
            result[home] = {"skipped": "; ".join(reasons)}
            continue
        sides = sides or Sides(options.strata, shape, folder, options.tokens)
        if options.sweep and not tried and home != "host" and grouping != "ours":
            tried = result["sweep"] = sweep(sides)
        buffers = tried[0]["buffers"] if tried and home != "host" else buffer_settings(shape)[1]
        row = summary(*rounds_of(sides, home, buffers, options.rounds, GROUPINGS[grouping]))
        row |= {"turns": grouping, "not_fitting": reasons}
        if tried and "theirs" in row and home != "host":
            least = min(one["peak_rss_bytes"] for one in tried if "seconds" in one)
            row["peak_rss_ratio_to_least"] = row["ours"]["peak_rss_bytes"] / min(least, row["theirs"]["peak_rss_bytes"])
        result[home] = row
        say(table({name: {home: row}}))  # at once: what comes after may fail
        if options.hide:
            find_t_hide(options, sides, home, buffers, grouping, row, known)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", required=True, help="an existing folder on the drive")
    parser.add_argument("--strata", default=os.path.join(ROOT, "build", "release", "bin", "strata"), help="the program")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="again for another (default 134m and 360m)")
    parser.add_argument("--home", action="append", choices=HOMES,
                        help="of the states (default nvme, nvme-narrow and host; of 1b nvme-cached and nvme-narrow)")
    parser.add_argument("--tokens", type=int, default=256, help="of a step")
    parser.add_argument("--rounds", type=int, default=5, help="measured steps of each side")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false", help="one setting of DeepSpeed's buffers only")
    parser.add_argument("--hide", action="store_true", help="find T_hide of both sides as well; takes several times as long")
    parser.add_argument("--hide-rounds", type=int, default=2, help="measured steps of each number of tokens")
    parser.add_argument("--unchecked", action="store_true", help="all four at once, whatever memory and drive have")
    parser.add_argument("--json", dest="out", help="write the JSON object to this file as well, after each shape")
    options = parser.parse_args()
    reason = why_not(options.strata)
    if reason is not None:
        print(json.dumps({"skipped": reason}))
        return
    results = {"tokens": options.tokens, "rounds": options.rounds, "load_before": os.getloadavg()}
    for name in options.shape or ["134m", "360m"]:
        with tempfile.TemporaryDirectory(prefix="strata-bench-", dir=options.dir) as folder:
            results[name] = measure(options, name, folder)
        results["load_after"] = os.getloadavg()
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=2)
    say(table(results))
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

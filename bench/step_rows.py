"""What bench/step_vs_deepspeed.py and bench/ranks_vs_peers.py make of the sides that they measure in turn."""

import contextlib
import importlib.util
import shutil
import statistics
import sys


def say(text):
    print(text, file=sys.stderr, flush=True)


def rounds_of(sides, home, buffers, rounds, groups):
    """{side: [step, ...]}, {side: peak bytes} and what ours says of itself; the first round is left out."""
    samples, peaks, about = {}, {}, None
    for group in groups:
        with contextlib.ExitStack() as running:
            started = {name: running.enter_context(sides.start(name, home, buffers)) for name in group}
            about = started["ours"].about if "ours" in started else about
            for name in started:
                samples[name] = []
            for number in range(rounds + 1):
                for name in list(started)[:: 1 if number % 2 == 0 else -1]:
                    samples[name].append(started[name].step())
            peaks |= {name: side.peak_resident_bytes() for name, side in started.items()}
    return {name: steps[1:] for name, steps in samples.items()}, peaks, about


def median_and_mad(values):
    centre = statistics.median(values)
    return {"median": centre, "mad": statistics.median([abs(value - centre) for value in values]), "all": values}


def seconds_of(samples, side):
    """A step's, and those of its computing alone, per round."""
    compute = samples[side + "_compute"]
    alone = [one["forward"] + one["backward"] if "forward" in one else one["seconds"] for one in compute]
    return [one["seconds"] for one in samples[side]], alone


def summary(samples, peaks, about):
    first = {name: steps[0]["loss"] for name, steps in samples.items()}
    # Drawn otherwise, so only nearly the same losses after as many updates; computing alone learns next to nothing.
    pairs = [pair for pair in (("ours", "theirs"), ("ours_compute", "theirs_compute")) if pair[1] in first]
    if not all(0.95 < first[a] / first[b] < 1.05 for a, b in pairs):
        raise RuntimeError(f"the sides do not train the same: losses {first}")
    out = {"parameters": about["parameters"], "compute_type": about["compute"], "losses": first,
           "recomputed_layers": about["recomputed_layers"]}
    for side in (name for name in ("ours", "theirs") if name in samples):
        step, compute = seconds_of(samples, side)
        out[side] = {
            "seconds": median_and_mad(step),
            "compute_seconds": median_and_mad(compute),
            "exposed_seconds": median_and_mad([a - b for a, b in zip(step, compute)]),
            "ratio_to_compute": median_and_mad([a / b for a, b in zip(step, compute)]),
            "peak_rss_bytes": peaks[side],
        }
    last = samples["ours"][-1]
    out["ours"]["nvme_bytes_per_parameter"] = {
        way: last[f"nvme_{way}_bytes"] / about["parameters"] for way in ("read", "written")}
    uncached = {way: about[f"uncached_{way}_bytes"] for way in ("read", "written")}
    out["ours"]["uncached_bytes_per_parameter"] = {way: uncached[way] / about["parameters"] for way in uncached}
    moved = last["nvme_read_bytes"] + last["nvme_written_bytes"]
    out["ours"]["cached_share"] = 1 - moved / sum(uncached.values()) if sum(uncached.values()) else None
    if "theirs" not in samples:
        return out
    ours, theirs = out["ours"], out["theirs"]
    theirs["optimizer_seconds"] = median_and_mad([one["optimizer"] for one in samples["theirs"]])
    out["total_ratio"] = median_and_mad(
        [b / a for a, b in zip(seconds_of(samples, "ours")[0], seconds_of(samples, "theirs")[0])])
    out["exposed_ratio"] = ours["exposed_seconds"]["median"] / theirs["exposed_seconds"]["median"]
    out["peak_rss_ratio"] = peaks["ours"] / peaks["theirs"]
    return out


def why_not(strata):
    """The reason why nothing can be compared, or None."""
    for package in ("deepspeed", "transformers"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed in {sys.executable}; tools/setup_bench.sh installs it"
    if shutil.which(strata) is None:
        return f"there is no program {strata}; `make program` builds it"
    return None

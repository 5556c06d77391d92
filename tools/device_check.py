"""Checks on a GPU, part by part. Prints one JSON object on stdout, and what the parts say on stderr.

  tools/device_check.sh                  all parts, on build/release (STRATA_BUILD names another folder)
  tools/device_check.sh facts bench-link these
  tools/device_check.sh --list           what there is
  tools/device_check.sh --pack FOLDER    copies what was built, and the libraries it needs beside torch and CUDA, to a
                                         folder that runs on a machine without them: STRATA_BUILD=FOLDER there

Exit codes: 0 all that ran passed, 1 a part failed, 2 usage, 6 no GPU.
"""

import argparse
import json
import sys
import time
import traceback

from device_context import Context, Failed, Skipped
from device_pack import pack
from device_parts import PARTS

NO_GPU = 6


def run_part(part, context, limit):
    """{"status", "reason", "seconds", "figures"} of one part."""
    start = time.monotonic()
    context.begin(limit)
    status, reason = "passed", ""
    try:
        part.run(context)
    except Skipped as skipped:
        status, reason = "skipped", str(skipped)
    except Failed as failed:
        status, reason = "failed", str(failed)
    except Exception as error:  # a part that breaks must not take the others' results with it
        traceback.print_exc()
        status, reason = "failed", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - start
    print(f"device_check: {part.name}: {status} after {seconds:.0f} s{': ' + reason if reason else ''}", file=sys.stderr)
    return {"status": status, "reason": reason, "seconds": round(seconds, 1), "figures": context.figures}


def run_parts(parts, context, seconds):
    """The results by name, and whether a GPU was missing."""
    end = time.monotonic() + seconds
    results, no_gpu = {}, False
    for part in parts:
        left = end - time.monotonic()
        if left < 5:
            results[part.name] = {"status": "skipped", "reason": f"the {seconds} s of --seconds are over", "seconds": 0,
                                  "figures": {}}
            continue
        print(f"device_check: {part.name}: {part.about}", file=sys.stderr, flush=True)
        results[part.name] = run_part(part, context, min(part.limit, left))
        no_gpu = no_gpu or (part.needs_gpu and context.why_no_gpu() is not None)
    return results, no_gpu


def main():
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="tools/device_check.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="print the parts and their time limits")
    parser.add_argument("--seconds", type=float, default=600, help="of all parts together (default 600)")
    parser.add_argument("--tiny", action="store_true", help="sizes to try the script with; bars are not judged")
    parser.add_argument("--pack", metavar="FOLDER", help="copy what was built to a folder that can travel")
    options = parser.parse_args()
    unknown = [name for name in options.parts if name not in names]
    if unknown:
        parser.error(f"unknown part {unknown[0]}; there are {', '.join(names)}")
    if options.list:
        for part in PARTS:
            print(f"{part.name:12} {part.limit:4} s  {part.about}")
        return 0
    context = Context(tiny=options.tiny)
    if options.pack:
        return pack(context, options.pack)
    chosen = [part for part in PARTS if not options.parts or part.name in options.parts]
    results, no_gpu = run_parts(chosen, context, options.seconds)
    counts = {status: sum(result["status"] == status for result in results.values())
              for status in ("passed", "failed", "skipped")}
    # facts fails without a GPU; that alone is the device's failure and not the program's.
    failed = [name for name, result in results.items() if result["status"] == "failed" and not (no_gpu and name == "facts")]
    print(json.dumps({"parts": results, **counts, "tiny": options.tiny, "ok": counts["failed"] == 0 and not no_gpu},
                     indent=2))
    return 1 if failed else NO_GPU if no_gpu else 0


if __name__ == "__main__":
    sys.exit(main())

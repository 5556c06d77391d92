"""What the parts of tools/device_check.sh share: where the build is, whether there is a GPU, how they run programs."""

import glob
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


class Skipped(Exception):
    pass


class Failed(Exception):
    pass


class NoGpu(Skipped):
    pass


class Context:
    def __init__(self, tiny=False):
        self.tiny = tiny
        self.build = Path(os.environ.get("STRATA_BUILD", ROOT / "build" / "release"))
        self.figures = {}
        self._end = time.monotonic()
        self._why_no_gpu = ""  # not asked yet

    def begin(self, limit):
        self.figures = {}
        self._end = time.monotonic() + limit

    def built(self, name):
        path = self.build / name
        return path if path.exists() else None

    def program(self):
        return self.built("bin/strata")

    def test(self, name):
        return self.built(f"bin/{name}") or next(iter(self.build.glob(f"tests/*/{name}")), None)

    def environment(self):
        """With the libraries of a packed folder and those of the torch that this Python has."""
        folders = [str(self.build.resolve() / "lib")]
        torch = importlib.util.find_spec("torch")
        if torch:
            site = Path(torch.submodule_search_locations[0]).parent
            folders += [str(site / "torch" / "lib"), *sorted(glob.glob(str(site / "nvidia" / "*" / "lib")))]
        before = os.environ.get("LD_LIBRARY_PATH")
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(folders + ([before] if before else []))}
        plugin = self.built("lib/libstrata_cuda.so")
        if plugin:
            environment.setdefault("STRATA_CUDA_PLUGIN", str(plugin.resolve()))
        return environment

    def run(self, *command, expect=(0,)):
        """Its stdout. What it says on stderr goes to ours. Ends it, and what it started, at the part's time limit."""
        words = [str(word) for word in command]
        print("  $ " + " ".join(words), file=sys.stderr, flush=True)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=self.environment(), cwd=ROOT,
                                   start_new_session=True)
        try:
            out, _ = process.communicate(timeout=max(1, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Failed(f"{Path(words[0]).name} was still running at the part's time limit") from None
        if process.returncode not in expect:
            print(out[-4000:], file=sys.stderr)
            raise Failed(f"{Path(words[0]).name} ended with exit code {process.returncode}")
        return out

    def strata(self, *words):
        program = self.program()
        if not program:
            raise Failed(f"there is no program in {self.build}: run the part build, or name a folder in STRATA_BUILD")
        return self.run(program, *words)

    def strata_json(self, *words):
        return json.loads(self.strata(*words, "--json"))

    def findings(self):
        return {finding["subject"]: finding for finding in self.strata_json("doctor")["findings"]}

    def why_no_gpu(self):
        """None where the program, or without one the driver, finds a GPU."""
        if self._why_no_gpu == "":
            self._why_no_gpu = self._look_for_gpu()
        return self._why_no_gpu

    def _look_for_gpu(self):
        if self.program():
            found = self.findings()
            gpu = found.get("GPU 0", found.get("GPU"))
            return None if gpu["verdict"] != "missing" else gpu["text"].removeprefix("none: ")
        if not shutil.which("nvidia-smi"):
            return "there is no nvidia-smi and no program that could look"
        return None if "GPU" in self.run("nvidia-smi", "-L", expect=range(256)) else "nvidia-smi lists no GPU"

    def bar(self, name, value, least):
        """Notes a figure that should reach `least`; check_bars() fails the part where one did not."""
        self.figures.setdefault("bars", {})[name] = {"value": value, "least": least, "reached": value >= least}

    def check_bars(self):
        missed = [f"{name} is {bar['value']:.3f}, not {bar['least']}" for name, bar in self.figures.get("bars", {}).items()
                  if not bar["reached"]]
        if missed and not self.tiny:
            raise Failed("; ".join(missed))

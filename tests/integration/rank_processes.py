"""Processes of a job with several ranks, as seen from outside: started, found, and whether they are still there."""

import os
import random
import re
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

USAGE, DOES_NOT_FIT, BAD_DATA, IO_FAILED, COMM_FAILED = 2, 3, 4, 5, 6
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC", "OMPI_", "PMI", "MPI_", "SLURM_")


def environment(**variables):
    """This process's, without what a launcher of the tests themselves may have set."""
    rest = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return rest | {name: str(value) for name, value in variables.items()}


def free_port():
    """Below those that systems give to connections by themselves, of which one could take it before its user does."""
    for port in random.sample(range(10000, 16000), 1000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


@contextmanager
def started(command, **variables):
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(**variables),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def variables_of(pid):
    """The environment with which a process was started; empty when it is gone or not ours."""
    try:
        words = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(word.decode(errors="replace").split("=", 1) for word in words if b"=" in word)


def processes():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def children_of(pid):
    """{rank: pid} of a launcher."""
    ranks = {}
    for child in processes():
        try:
            if int(re.search(r"PPid:\s+(\d+)", Path(f"/proc/{child}/status").read_text())[1]) != pid:
                continue
        except (OSError, TypeError):
            continue
        rank = variables_of(child).get("RANK")
        if rank is not None:
            ranks[int(rank)] = child
    return ranks


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def alive_with(name, value):
    """Processes whose environment holds this: of a job, when it was given a variable of its own."""
    return [pid for pid in processes() if variables_of(pid).get(name) == value and alive(pid)]

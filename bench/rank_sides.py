"""Several processes as one side of bench/ranks_vs_peers.py: the ranks of a job."""

import os
import statistics

from step_sides import GIB, ROOT, STEPS_A_REQUEST, Side, Sides, buffer_settings, free_port, parameters_of

WORKERS = {peer: os.path.join(ROOT, "bench", f"{peer}_worker.py") for peer in ("fsdp2", "deepspeed")}
# Where the states of both are, and whom we are compared with; FSDP2 keeps its states in memory always.
ROWS = ("nvme/fsdp2", "host/fsdp2", "nvme/deepspeed", "host/deepspeed")


def merged(answers):
    """One answer of all ranks: the times of the slowest, the bytes of all, the mean loss."""
    slowest = dict(max(answers, key=lambda answer: answer.get("seconds", 0)))
    for key in slowest:
        if key.endswith("_bytes"):
            slowest[key] = sum(answer[key] for answer in answers)
    if "loss" in slowest:
        slowest["loss"] = statistics.mean(answer["loss"] for answer in answers)
    return slowest


class RankedSide:
    """Like a Side; its processes are already started and become ready together."""

    def __init__(self, ranks):
        self.ranks = ranks
        self.about = merged(self.of_all(lambda rank: rank.ready().about))

    def of_all(self, ask):
        try:
            return [ask(rank) for rank in self.ranks]
        except BaseException:
            for rank in self.ranks:  # they wait for the one that failed
                rank.kill()
            raise

    def step(self):
        before = [rank.cpu_seconds() for rank in self.ranks]
        for rank in self.ranks:
            rank.send("step")
        answer = merged(self.of_all(lambda rank: rank.answer()))
        used = [rank.cpu_seconds() - cpu for rank, cpu in zip(self.ranks, before)]
        return answer | {"cpu_seconds": max(used) / STEPS_A_REQUEST}

    def peak_resident_bytes(self):
        return max(rank.peak_resident_bytes() for rank in self.ranks)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            if not rank.process.stdin.closed:
                rank.process.stdin.close()
        for rank in self.ranks:
            rank.end()


def cpus_of(rank, ranks, cpus):
    """As ours divides them (core/cpu_share.h): contiguous parts, at least one each."""
    first = rank * len(cpus) // ranks
    return cpus[first:max((rank + 1) * len(cpus) // ranks, first + 1)]


class RankSides(Sides):
    """Starts jobs of `ranks` processes with products in bf16. What it measures is named home/peer, as in ROWS."""

    def __init__(self, strata, shape, folder, tokens, ranks):
        self.ranks = ranks
        super().__init__(strata, shape, folder, tokens, "bf16")

    def start(self, name, row, buffers):
        home, peer = row.split("/")
        if name.startswith("ours"):
            return self.ours("compute" if name == "ours_compute" else home)
        if name == "theirs_compute":
            return self.theirs("none", buffers)
        return self.theirs({"host": "cpu"}.get(home, home), buffers, WORKERS[peer])

    def ours(self, home):
        job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(self.ranks)}
        return RankedSide([
            Side(self.words_of_ours(home), environment={"GLIBC_TUNABLES": "", **job, "RANK": str(rank)})
            for rank in range(self.ranks)])

    def theirs(self, home, buffers, worker=WORKERS["deepspeed"]):
        job = self.job_of(home, buffers) | {"ranks": self.ranks}
        return RankedSide([
            self.worker(worker, job | {"rank": rank, "cpus": cpus_of(rank, self.ranks, job["cpus"])})
            for rank in range(self.ranks)])


def memory_need(row, shape, ranks):
    """Bytes that all processes of a row have resident, roughly: what was measured of two ranks at 134 M parameters, as a line."""
    home, peer = row.split("/")
    numel = parameters_of(shape)
    ours = (4 + (16 if home == "host" else 2) / ranks) * numel + GIB // 2
    buffers = buffer_settings(shape)[0]
    theirs = {"fsdp2": 16 * numel, "deepspeed": 20 * numel}[peer] + GIB
    if row == "nvme/deepspeed":
        theirs += 2 * buffers["param_buffer_count"] * buffers["param_buffer_size"]
    computing = (6 + 4) * numel + 2 * GIB
    return int(ranks * (ours + theirs + computing))

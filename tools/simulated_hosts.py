"""Hosts of a network on one machine: network namespaces with a link between them, for tests and measurements.

    with SimulatedHosts(2) as hosts:
        hosts.popen(0, ["ping", "-c", "1", hosts.address(1)]).wait()

Needs root and iproute2; unavailable() says what is missing. Two hosts are connected directly, so that the counters and the
queue of either end are those of the link. Nothing outside of the namespaces is reached or changed.
"""

import os
import shutil
import subprocess
import uuid

INTERFACE = "link0"  # of every host


def run(*words):
    """What an `ip` or `tc` printed. Raises RuntimeError with its complaint."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def unavailable():
    """Why this machine cannot simulate hosts; None where it can."""
    for program in ("ip", "tc"):
        if not shutil.which(program):
            return f"no {program} on this machine (package iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with SimulatedHosts():
            return None
    except RuntimeError as error:
        return str(error)


class SimulatedHosts:
    """Two hosts, 0 and 1; their names are this object's own."""

    def __init__(self):
        self._names = [f"strata-{uuid.uuid4().hex[:8]}-{host}" for host in range(2)]

    def __enter__(self):
        try:
            for name in self._names:
                run("ip", "netns", "add", name)
            a, b = self._names
            run("ip", "link", "add", INTERFACE, "netns", a, "type", "veth", "peer", "name", INTERFACE, "netns", b)
            for host, name in enumerate(self._names):
                run("ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", INTERFACE)
                self.set_link(host, up=True)
                run("ip", "-n", name, "link", "set", "lo", "up")
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The link goes with them. Processes that still run in one keep it until they end.
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    @staticmethod
    def address(host):
        return f"10.77.0.{host + 1}"

    def set_link(self, host, *, up):
        run("ip", "-n", self._names[host], "link", "set", INTERFACE, "up" if up else "down")

    def limit_rate(self, mbit):
        """What either host sends goes at this rate from now on."""
        for name in self._names:
            run("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", f"{mbit}mbit",
                "burst", "256kb", "latency", "100ms")

    def sent_bytes(self, host):
        """Bytes that the host has put on the link so far, headers included."""
        counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
        return int(run("ip", "netns", "exec", self._names[host], "cat", counter))

    def command(self, host, words):
        return ["ip", "netns", "exec", self._names[host], *map(str, words)]

    def popen(self, host, words, **options):
        """A process on a host; its number is that of the program itself."""
        return subprocess.Popen(self.command(host, words), **options)

"""hosts.py: faults of a training run on several hosts, as `./dev hosts` runs them. As root.

    hosts.py BUILD OUT [--times N] [FAULT...]

The hosts are network namespaces, joined by cable.py. Each fault happens to a run of two ranks (tp=2) or of three
(dp=3), a rank on each host, that has taken steps and saved. Recorded: which rank notices it, after how long, what it
writes, what is on disk, and whether a resumed run has the losses of an undisturbed run of as many ranks on one host, to
the bit. With --times N each fault is run N times, and a line for each fault has the times of all its runs. OUT/table.md
has the table, OUT/runs.jsonl a line for each run, OUT/FAULT.N what the ranks wrote. The exit code is 1 if a run did not
go as its fault demands.
"""

import argparse
import array
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MODEL = ROOT / "tests/parity/llama_gqa"  # a vocabulary of 64
PORT = 29511


class Failed(Exception):
    """The run did not go as it must."""


class Skipped(Exception):
    """This machine cannot have the fault."""


def must(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(what)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Hosts:
    """Namespaces a, b, ... with 10.84.0.1, .2, ... and fd84::1, ::2, ..., and one with the cable."""

    def __init__(self, names: str = "ab") -> None:
        self.names = names
        self.prefix = f"moonshard-{os.getpid()}-"
        ends = []
        try:
            ip("netns", "add", self.space("wire"))
            for number, name in enumerate(names, 1):
                space, end = self.space(name), f"end{name}"
                ip("netns", "add", space)
                ip("-n", space, "link", "add", "cable", "type", "veth", "peer", "name", end, "netns", self.space("wire"))
                ip("-n", self.space("wire"), "link", "set", end, "up")
                for device in ("lo", "cable"):
                    ip("-n", space, "link", "set", device, "up")
                ip("-n", space, "addr", "add", f"10.84.0.{number}/24", "dev", "cable")
                ip("-n", space, "addr", "add", f"fd84::{number}/64", "dev", "cable", "nodad")
                subprocess.run(self.within(name, sys.executable, str(HERE / "cable.py"), "--plain", "cable"), check=True)
                ends.append(end)
            self.cable = subprocess.Popen(
                self.within("wire", sys.executable, str(HERE / "cable.py"), *ends),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except Exception:
            self.close()
            raise

    def space(self, name: str) -> str:
        return self.prefix + name

    def within(self, name: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.space(name), *words]

    def tell(self, command: str) -> None:
        assert self.cable.stdin and self.cable.stdout
        self.cable.stdin.write(command + "\n")
        self.cable.stdin.flush()
        must(self.cable.stdout.readline() == "ok\n", f"the cable does not take '{command}'")

    def close(self) -> None:
        if hasattr(self, "cable"):
            self.cable.kill()
            self.cable.wait()
        for name in (*self.names, "wire"):
            subprocess.run(["ip", "netns", "del", self.space(name)], capture_output=True)


@dataclasses.dataclass
class Place:
    build: pathlib.Path
    out: pathlib.Path
    data: pathlib.Path
    torchrun: list[str]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("MASTER_", "TORCHELASTIC_", "GLOO_", "NCCL_", "SLURM_", "MOONSHARD_"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            kept.pop(name, None)
        return {**kept, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "0", "CUDA_VISIBLE_DEVICES": "", **more}

    def words(self, steps: int, ranks: int, *more: str) -> list[str]:
        given = set(more)
        words = ["train", str(MODEL), "--data", str(self.data), "--steps", str(steps), "--schedule", "constant",
                 "--log-every", "1000000", *more]
        mesh, batch = ("tp=2", "8") if ranks == 2 else (f"dp={ranks}", str(3 * ranks))
        for name, value in (("--mesh", mesh), ("--sequence", "16"), ("--batch", batch), ("--lr", "1e-3")):
            if name not in given:
                words += [name, value]
        return words


def losses_of(log: pathlib.Path) -> dict[int, float]:
    """By step; of a step that was taken twice, the last."""
    out: dict[int, float] = {}
    if log.exists():
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "step":
                    out[event["step"]] = event["loss"]
    return out


class Reference:
    """The losses of an undisturbed run of so many ranks on one host."""

    def __init__(self, place: Place, ranks: int) -> None:
        self.place, self.ranks = place, ranks
        self.log = place.out / f"reference.{ranks}.jsonl"
        self.losses = losses_of(self.log)

    def upto(self, steps: int) -> dict[int, float]:
        if len(self.losses) < steps:
            steps = max(steps, 2 * len(self.losses))
            self.log.unlink(missing_ok=True)
            words = self.place.words(steps, self.ranks, "--log", str(self.log))
            subprocess.run([str(self.place.build / "moonshard"), *words], env=self.place.environment(), check=True,
                           capture_output=True)
            self.losses = losses_of(self.log)
        return self.losses

    def compare(self, losses: dict[int, float], least: int) -> None:
        must(len(losses) >= least, f"{len(losses)} steps, and not {least}")
        known = self.upto(max(losses))
        other = [step for step, loss in losses.items() if loss != known[step]]
        must(not other, f"the losses of {len(other)} of {len(losses)} steps differ, from step {min(other or [0])} on")


class Rank:
    """A rank on a host. `under`: a command that runs it, as ("env", "NAME=VALUE")."""

    def __init__(self, run: "Run", rank: int, host: str, words: list[str], under: tuple[str, ...] = (),
                 **environment: str) -> None:
        self.rank = rank
        self.err_file = run.folder / f"rank{rank}.{run.part}.err"
        variables = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(run.ranks), "LOCAL_WORLD_SIZE": "1",
                     "MASTER_ADDR": run.master, "MASTER_PORT": str(PORT)}
        with open(self.err_file, "wb") as err, open(run.folder / f"rank{rank}.{run.part}.out", "wb") as out:
            self.process = subprocess.Popen(
                run.hosts.within(host, *under, str(run.place.build / "moonshard-run"), *words), stdout=out, stderr=err,
                stdin=subprocess.DEVNULL, env=run.place.environment(**{**variables, **environment}),
                start_new_session=True)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def running(self) -> bool:
        return self.process.poll() is None

    def err(self) -> str:
        return self.err_file.read_text(errors="replace")

    def ends(self, within: float) -> tuple[int, float]:
        """The exit code, and the seconds from now; a signal's number below 0."""
        begin = time.monotonic()
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f"rank {self.rank} still runs after {within} s: {self.err()[-600:]}") from None
        return code, time.monotonic() - begin


class Run:
    """A run of a rank on each host, and what is left of it."""

    def __init__(self, place: Place, reference: Reference, folder: pathlib.Path, hosts: Hosts) -> None:
        self.place, self.reference, self.folder, self.hosts = place, reference, folder, hosts
        self.save = folder / "run"
        self.log = folder / "log.jsonl"
        self.master = "10.84.0.1"
        self.ranks = len(hosts.names)
        self.part = 0
        self.all: list[Rank] = []
        self.notes: dict[str, Any] = {}
        self.under: dict[int, tuple[str, ...]] = {}  # by rank
        self.mounts: list[pathlib.Path] = []

    def words(self, steps: int, *more: str) -> list[str]:
        return self.place.words(steps, self.ranks, *more)

    def start(self, steps: int = 1_000_000, *more: str, only: str | None = None, words_of: dict[int, list[str]] | None = None,
              save: bool = True, **environment: str) -> None:
        self.part += 1
        given = ["--log", str(self.log), *more]
        if save:
            given += ["--save", str(self.save), "--save-every", "40"]
        words = self.words(steps, *given)
        self.all = [Rank(self, rank, host, (words_of or {}).get(rank, words), self.under.get(rank, ()), **environment)
                    for rank, host in enumerate(self.hosts.names) if only is None or host in only]

    def takes(self, steps: int, within: float = 90) -> None:
        """Waits for so many steps more than there are."""
        wanted = len(losses_of(self.log)) + steps
        until = time.monotonic() + within
        while len(losses_of(self.log)) < wanted:
            ended = [rank for rank in self.all if not rank.running()]
            must(not ended, f"rank {ended[0].rank if ended else 0} ended: {ended[0].err()[-600:] if ended else ''}")
            must(time.monotonic() < until, f"{len(losses_of(self.log))} of {wanted} steps within {within} s")
            time.sleep(0.1)

    def begins(self, *more: str, **environment: str) -> None:
        """Until it has saved, and the ranks know where the others are."""
        self.start(1_000_000, *more, **environment)
        until = time.monotonic() + 90
        while not (self.save / "latest").exists():
            must(time.monotonic() < until and all(rank.running() for rank in self.all),
                 "no save: " + self.all[-1].err()[-600:])
            time.sleep(0.1)
        time.sleep(3)

    def noticed(self, by: int, within: float, code: int, *texts: str, begin: float | None = None) -> None:
        """`by` ends after the fault, at most so many seconds from now, and writes these texts."""
        got, took = self.all[by].ends(within)
        if begin is not None:
            took = time.monotonic() - begin
        err = self.all[by].err()
        self.notes.setdefault("by", by)
        self.notes.setdefault("seconds", round(took, 1))
        self.notes.setdefault("reads", first_finding(err))
        must(got == code, f"rank {by} ended with {got}, and not {code}: {err[-800:]}")
        for text in texts:
            must(text in err, f"rank {by} does not write '{text}': {err[-800:]}")

    def goes_on(self, steps: int = 30) -> None:
        self.takes(steps)
        self.notes.setdefault("reads", last_report(self.all[0].err()) or "nothing")

    def stops(self) -> None:
        self.all[0].send(signal.SIGTERM)
        for rank in self.all:
            code, _ = rank.ends(60)
            must(code == 128 + signal.SIGTERM, f"rank {rank.rank} ended with {code}: {rank.err()[-600:]}")

    def kill(self) -> None:
        for rank in self.all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, signal.SIGKILL)
            rank.process.wait()

    def on_disk(self) -> int:
        """The step that `latest` names."""
        steps = sorted(int(path.name[5:]) for path in self.save.glob("step_*") if path.name[5:].isdigit())
        must((self.save / "latest").exists(), "nothing is saved")
        latest = int((self.save / "latest").read_text().split()[0].strip().rsplit("_", 1)[1])
        must(latest in steps, f"latest names {latest}, and there are {steps}")
        self.notes["disk"] = f"steps {', '.join(map(str, steps))}"
        self.notes["steps_lost"] = max(losses_of(self.log), default=latest) - latest
        return latest

    def resumes(self, **environment: str) -> None:
        """From what is on disk, 20 steps more, with the losses of the undisturbed run in all steps."""
        self.kill()
        self.hosts.tell("join")
        latest = self.on_disk()
        self.start(latest + 20, "--resume", **environment)
        for rank in self.all:
            code, _ = rank.ends(120)
            must(code == 0, f"the resumed rank {rank.rank} ended with {code}: {rank.err()[-800:]}")
        losses = losses_of(self.log)
        must(max(losses) >= latest + 20, "the resumed run has not taken its steps")
        self.reference.compare(losses, latest)
        self.notes["resumes"] = "the same losses"


def first_finding(err: str) -> str:
    """The first error, and what it declares."""
    lines = err.splitlines()
    starts = ("error[",) if "error[" in err else ("moonshard:", "moonshard-run:")
    for i, line in enumerate(lines):
        if line.startswith(starts):
            text = line.strip()
            declared = [x.strip() for x in lines[i + 1 : i + 4] if x.strip().startswith("declared")]
            return text + (" " + declared[0] if declared else "")
    return lines[-1] if lines else ""


def last_report(err: str) -> str:
    found = [line for line in err.splitlines() if "has waited" in line]
    return found[-1] if found else ""


# --- The faults -----------------------------------------------------------------------------------------------------
FAULTS: dict[str, tuple[str, Callable[[Run], None], str]] = {}


def fault(text: str, hosts: str = "ab") -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    def add(run: Callable[[Run], None]) -> Callable[[Run], None]:
        FAULTS[run.__name__] = (text, run, hosts)
        return run

    return add


@fault("a file of the checkpoint is missing on one host")
def file_missing(run: Run) -> None:
    other = run.folder / "model"
    shutil.copytree(MODEL, other)
    (other / "model-00003-of-00006.safetensors").unlink()
    words = run.words(100, "--log", str(run.log))
    run.start(100, save=False, words_of={0: words, 1: [words[0], str(other), *words[2:]]})
    code, _ = run.all[1].ends(60)
    must(code > 0, "rank 1 did not fail")
    run.noticed(0, 10, code, "rank 1 on ", "failed first", "model-00003")
    run.notes.update(disk="nothing, the run had not begun", resumes="-")


@fault("other data on one host")
def other_data(run: Run) -> None:
    other = run.folder / "other.bin"
    other.write_bytes(run.place.data.read_bytes()[::-1])
    words = run.words(100, "--log", str(run.log))
    run.start(100, save=False, words_of={0: words, 1: [*words[:3], str(other), *words[4:]]})
    begin = time.monotonic()
    for rank in run.all:
        code, _ = rank.ends(60)
        must(code > 0 and "MS05" in rank.err(), f"rank {rank.rank}: {code} {rank.err()[-600:]}")
    run.notes.update(by="all", seconds=round(time.monotonic() - begin, 1),
                     reads=first_finding(run.all[0].err()), disk="nothing, the run had not begun", resumes="-")


@fault("the directory of --save is another one on one host")
def other_directory(run: Run) -> None:
    words = {rank: run.words(100, "--log", str(run.log), "--save", str(folder))
             for rank, folder in ((0, run.save), (1, run.folder / "elsewhere"))}
    run.start(100, save=False, words_of=words)
    begin = time.monotonic()
    for rank in run.all:
        code, _ = rank.ends(60)
        must(code > 0 and "not the same as on rank 0" in rank.err(), f"rank {rank.rank}: {code} {rank.err()[-600:]}")
    run.notes.update(by="all", seconds=round(time.monotonic() - begin, 1), reads=first_finding(run.all[0].err()),
                     disk="nothing, the run had not begun", resumes="-")


@fault("the directory of --save is another one on one host, under the same name, when the run resumes")
def other_directory_resuming(run: Run) -> None:
    run.begins()
    run.stops()
    latest = run.on_disk()
    other = run.folder / "elsewhere"
    shutil.copytree(run.save, other)
    # Seen by this rank alone: each command within a network namespace has mounts of its own.
    run.under[1] = ("sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(other), str(run.save))
    run.start(latest + 20, "--resume")
    begin = time.monotonic()
    for rank in run.all:
        code, _ = rank.ends(60)
        must(code > 0 and "not the same as on rank 0" in rank.err(), f"rank {rank.rank}: {code} {rank.err()[-600:]}")
    run.notes.update(by="all", seconds=round(time.monotonic() - begin, 1), reads=first_finding(run.all[0].err()))
    run.under.clear()
    run.resumes()


@fault("the disk of --save is full")
def disk_full(run: Run) -> None:
    run.save.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(run.save)], check=True, capture_output=True)
    run.mounts.append(run.save)
    run.begins()
    begin = time.monotonic()
    filler = run.save / "filler"
    # A save that fails removes what it wrote: so the space is taken again until one has failed from its begin.
    while run.all[0].err().count("No space left on device") < 2:
        must(time.monotonic() - begin < 60, "no save has failed within 60 s")
        with contextlib.suppress(OSError), open(filler, "ab", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        run.notes.setdefault("seconds", None)
        if run.notes["seconds"] is None and "No space left on device" in run.all[0].err():
            run.notes["seconds"] = round(time.monotonic() - begin, 1)
        time.sleep(0.05)
    if run.notes["seconds"] is None:
        run.notes["seconds"] = round(time.monotonic() - begin, 1)
    run.notes.update(by="0", reads=first_finding(run.all[0].err()))
    run.takes(50)
    latest = run.on_disk()
    run.kill()
    filler.unlink()
    must(run.on_disk() == latest, "the last save has changed")
    run.resumes()


@fault("the clock of one host is an hour ahead, that of the other an hour behind; exchanged when the run resumes")
def clocks(run: Run) -> None:
    if not shutil.which("faketime"):
        raise Skipped("no faketime: apt-get install faketime")
    # Only what a wrong clock changes: not the time since the start, and not the times of files.
    real = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    # The command itself would take the signals that are meant for the rank.
    library = subprocess.run(["faketime", "-m", "-f", "+1h", "printenv", "LD_PRELOAD"], capture_output=True, text=True,
                             check=True).stdout.strip()
    ahead, behind = (("env", f"LD_PRELOAD={library}", f"FAKETIME={offset}") for offset in ("+1h", "-1h"))
    hours = [int(subprocess.run([*under, "date", "+%s"], capture_output=True, text=True, check=True,
                                env={**os.environ, **real}).stdout) for under in (ahead, behind)]
    must(7195 <= hours[0] - hours[1] <= 7205, f"the clocks are {hours[0] - hours[1]} s apart")
    run.under = {0: ahead, 1: behind}
    run.begins(**real)
    begin = time.monotonic()
    run.all[1].send(signal.SIGTERM)
    for rank in run.all:
        code, _ = rank.ends(30)
        must(code == 128 + signal.SIGTERM, f"rank {rank.rank} ended with {code}: {rank.err()[-600:]}")
    run.notes.update(by="-", seconds=round(time.monotonic() - begin, 1), reads="nothing; SIGTERM ends the run after")
    run.under = {0: behind, 1: ahead}
    run.resumes(**real)
    must(run.notes["steps_lost"] == 0, "a step was lost")


@fault("kill -9 of a rank while it joins", "abc")
def killed_joining(run: Run) -> None:
    words = run.words(100, "--log", str(run.log))
    run.start(100, only="ab", save=False, words_of={0: words, 1: words})
    time.sleep(6)  # the third does not come
    run.all[1].send(signal.SIGKILL)
    run.noticed(0, 15, 1, "rank 1 on ", "in 'joining the other ranks', failed first", "has ended without a message")
    run.notes.update(disk="nothing, the run had not begun", resumes="-")


@fault("kill -9 of rank 1 in a step")
def killed_one(run: Run) -> None:
    run.begins()
    run.all[1].send(signal.SIGKILL)
    run.noticed(0, 15, 1, "rank 1 on ", "(10.84.0.2), in 'step ", "failed first", "has ended without a message")
    run.resumes()


@fault("kill -9 of rank 0 in a step")
def killed_zero(run: Run) -> None:
    run.begins()
    run.all[0].send(signal.SIGKILL)
    run.noticed(1, 15, 1, "rank 0 on ", "(10.84.0.1), in 'step ", "failed first")
    run.resumes()


def wait_for_save(run: Run) -> None:
    known = {path.name for path in run.save.iterdir()}
    until = time.monotonic() + 60
    while {path.name for path in run.save.iterdir()} <= known:
        must(time.monotonic() < until, "no save begins")
        time.sleep(0.0005)


@fault("kill -9 of rank 1 in a save")
def killed_one_saving(run: Run) -> None:
    run.begins()
    wait_for_save(run)
    run.all[1].send(signal.SIGKILL)
    run.noticed(0, 15, 1, "rank 1 on ", "failed first", "has ended without a message")
    run.resumes()


@fault("kill -9 of rank 0 in a save")
def killed_zero_saving(run: Run) -> None:
    run.begins()
    wait_for_save(run)
    run.all[0].send(signal.SIGKILL)
    run.noticed(1, 15, 1, "rank 0 on ", "failed first")
    run.resumes()


@fault("a host loses its power: no packet comes from it any more, `--timeout 25`")
def host_gone(run: Run) -> None:
    run.begins("--timeout", "25", MOONSHARD_PATIENCE="5")
    begin = time.monotonic()
    run.hosts.tell("cut")
    run.all[1].send(signal.SIGKILL)
    time.sleep(15)
    must("has waited" in run.all[0].err() and "rank 1 on " in last_report(run.all[0].err()),
         "no report of the wait within 15 s")
    run.noticed(0, 45, 1, "rank 1 on ", "(10.84.0.2), in 'step ", "failed first", begin=begin)
    run.resumes()


@fault("the cable is pulled for 5 s")
def cut_short(run: Run) -> None:
    cut_for(run, 5)


@fault("the cable is pulled for 20 s")
def cut_long(run: Run) -> None:
    cut_for(run, 20)
    must("without a sign of life for " in run.notes["reads"], "the silence was not reported: " + run.notes["reads"])


def cut_for(run: Run, seconds: float) -> None:
    run.begins(MOONSHARD_PATIENCE="4")
    run.hosts.tell("cut")
    time.sleep(seconds)
    steps = len(losses_of(run.log))
    run.hosts.tell("join")
    begin = time.monotonic()
    while len(losses_of(run.log)) <= steps + 1:
        must(all(rank.running() for rank in run.all), "a rank ended: " + run.all[0].err()[-600:] + run.all[1].err()[-600:])
        must(time.monotonic() - begin < 60, "no step within 60 s after the cable is there again")
        time.sleep(0.05)
    run.notes["seconds"] = round(time.monotonic() - begin, 1)
    run.notes["by"] = "the run goes on so long after"
    run.goes_on()
    run.stops()
    run.resumes()


@fault("the cable is pulled for longer than `--timeout 20`")
def cut_for_good(run: Run) -> None:
    run.begins("--timeout", "20")
    run.hosts.tell("cut")
    begin = time.monotonic()
    run.noticed(0, 45, 1, "rank 1 on ", "failed first", "no sign of life for ")
    run.noticed(1, 45, 1, "rank 0 on ", "failed first")
    must(time.monotonic() - begin < 45, "late")
    run.resumes()


@fault("the interface of one host is down for 20 s")
def interface_down(run: Run) -> None:
    run.begins(MOONSHARD_PATIENCE="4")
    space = run.hosts.space("b")
    ip("-n", space, "link", "set", "cable", "down")
    time.sleep(20)
    steps = len(losses_of(run.log))
    ip("-n", space, "link", "set", "cable", "up")
    begin = time.monotonic()
    while len(losses_of(run.log)) <= steps + 1:
        must(all(rank.running() for rank in run.all), "a rank ended: " + run.all[0].err()[-600:] + run.all[1].err()[-600:])
        must(time.monotonic() - begin < 60, "no step within 60 s after the interface is up again")
        time.sleep(0.05)
    run.notes.update(by="the run goes on so long after", seconds=round(time.monotonic() - begin, 1))
    run.goes_on()
    run.stops()
    run.resumes()


@fault("a rank is suspended (SIGSTOP) for 5 s")
def frozen_short(run: Run) -> None:
    run.begins(MOONSHARD_PATIENCE="2")
    run.all[1].send(signal.SIGSTOP)
    time.sleep(5)
    run.all[1].send(signal.SIGCONT)
    run.notes.update(by="0", seconds=2)
    run.goes_on()
    must("rank 1 on " in run.notes["reads"], "no report: " + run.notes["reads"])
    run.stops()
    run.resumes()


@fault("a rank is suspended for longer than `--timeout 15`")
def frozen_long(run: Run) -> None:
    run.begins("--timeout", "15")
    run.all[1].send(signal.SIGSTOP)
    run.noticed(0, 40, 1, "rank 1 on ", "failed first")
    run.all[1].send(signal.SIGCONT)
    code, _ = run.all[1].ends(30)
    must(code == 1, f"rank 1 ended with {code}")
    run.resumes()


@fault("SIGTERM at rank 1")
def sigterm(run: Run) -> None:
    run.begins()
    stopped_by(run, 1, signal.SIGTERM)


@fault("Ctrl-C (SIGINT) at rank 0")
def sigint(run: Run) -> None:
    run.begins()
    stopped_by(run, 0, signal.SIGINT)


@fault("SIGUSR1 of a scheduler at rank 1")
def sigusr1(run: Run) -> None:
    run.begins()
    stopped_by(run, 1, signal.SIGUSR1)


def stopped_by(run: Run, rank: int, number: int) -> None:
    begin = time.monotonic()
    run.all[rank].send(number)
    for one in run.all:
        code, _ = one.ends(30)
        must(code == 128 + number, f"rank {one.rank} ended with {code}: {one.err()[-600:]}")
    run.notes.update(by="all", seconds=round(time.monotonic() - begin, 1), reads=first_finding(run.all[0].err()) or "-")
    run.resumes()
    must(run.notes["steps_lost"] == 0, "a step was lost")


@fault("SIGTERM at rank 0 while rank 1 is suspended, `--grace 4`")
def sigterm_hanging(run: Run) -> None:
    run.begins("--grace", "4")
    run.all[1].send(signal.SIGSTOP)
    time.sleep(1)
    run.all[0].send(signal.SIGTERM)
    run.noticed(0, 15, 128 + signal.SIGTERM)
    run.all[1].send(signal.SIGCONT)
    code, _ = run.all[1].ends(30)
    must(code > 0, f"rank 1 ended with {code}")
    run.resumes()


@fault("a second SIGTERM, 2 s after the first, while rank 1 is suspended")
def sigterm_twice(run: Run) -> None:
    run.begins()
    run.all[1].send(signal.SIGSTOP)
    time.sleep(1)
    run.all[0].send(signal.SIGTERM)
    time.sleep(2)
    run.all[0].send(signal.SIGTERM)
    run.noticed(0, 5, 128 + signal.SIGTERM)
    run.all[1].send(signal.SIGCONT)
    code, _ = run.all[1].ends(30)
    must(code > 0, f"rank 1 ended with {code}")
    run.resumes()


@fault("rank 1 does not start, `--timeout 12`")
def never_comes(run: Run) -> None:
    run.start(100, "--timeout", "12", only="a", save=False, MOONSHARD_PATIENCE="3")
    run.noticed(0, 40, 1, "not there: rank 1")
    run.notes.update(disk="nothing, the run had not begun", resumes="-")


@fault("rank 0 does not start, `--timeout 12`")
def zero_never_comes(run: Run) -> None:
    run.start(100, "--timeout", "12", only="b", save=False, MOONSHARD_PATIENCE="3")
    run.all = [run.all[0]]
    run.noticed(0, 60, 1, "cannot be reached yet: rank 0 has not come")
    run.notes.update(by="1", disk="nothing, the run had not begun", resumes="-")


@fault("50 ms delay and 2 % loss")
def slow_cable(run: Run) -> None:
    run.hosts.tell("delay 50")
    run.hosts.tell("loss 2")
    begin = time.monotonic()
    run.start(3, save=False)
    for rank in run.all:
        code, _ = rank.ends(300)
        must(code == 0, f"rank {rank.rank} ended with {code}: {rank.err()[-600:]}")
    run.reference.compare(losses_of(run.log), 3)
    run.notes.update(by="-", seconds=round(time.monotonic() - begin, 1), reads="nothing, 3 steps take so long",
                     disk="-", resumes="the same losses")


@fault("a cable of 10 Mbit/s")
def narrow_cable(run: Run) -> None:
    run.hosts.tell("rate 10")
    begin = time.monotonic()
    run.start(20, save=False)
    for rank in run.all:
        code, _ = rank.ends(300)
        must(code == 0, f"rank {rank.rank} ended with {code}: {rank.err()[-600:]}")
    run.reference.compare(losses_of(run.log), 20)
    run.notes.update(by="-", seconds=round(time.monotonic() - begin, 1), reads="nothing, 20 steps take so long",
                     disk="-", resumes="the same losses")


@fault("the hosts have IPv6 alone")
def ipv6_alone(run: Run) -> None:
    for host in run.hosts.names:
        for device in ("cable", "lo"):
            ip("-n", run.hosts.space(host), "-4", "addr", "flush", "dev", device)
    run.master = "fd84::1"
    run.begins()
    run.all[1].send(signal.SIGKILL)
    run.noticed(0, 15, 1, "rank 1 on ", "(fd84::2), in 'step ", "failed first")
    run.resumes()


@fault("kill -9 of a rank of three", "abc")
def killed_of_three(run: Run) -> None:
    run.begins()
    run.all[1].send(signal.SIGKILL)
    begin = time.monotonic()
    for by in (0, 2):
        run.noticed(by, 15, 1, "rank 1 on ", "(10.84.0.2)", "failed first", "has ended without a message")
    run.notes.update(by="0 and 2", seconds=round(time.monotonic() - begin, 1))
    run.resumes()


@fault("SIGTERM at a rank of three", "abc")
def sigterm_of_three(run: Run) -> None:
    run.begins()
    stopped_by(run, 2, signal.SIGTERM)


@fault("kill -9 of a rank under torchrun --max-restarts 1, one agent on each host")
def torchrun_restarts(run: Run) -> None:
    known = subprocess.run([*run.place.torchrun, "--help"], capture_output=True).returncode == 0
    if not known:
        raise Skipped("no torchrun: " + " ".join(run.place.torchrun))
    agents = []
    for node, host in enumerate(run.hosts.names):
        words = run.words(400, "--log", str(run.log), "--save", str(run.save), "--save-every", "40", "--resume")
        agent = [*run.place.torchrun, "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1",
                 "--master-addr", run.master, "--master-port", str(PORT), "--max-restarts", "1",
                 "--monitor-interval", "1", "--no-python", "--", str(run.place.build / "moonshard"), *words]
        with open(run.folder / f"agent{node}.err", "wb") as err:
            agents.append(subprocess.Popen(run.hosts.within(host, *agent), stdout=err, stderr=err,
                                           env=run.place.environment(), start_new_session=True))
    try:
        until = time.monotonic() + 120
        while not (run.save / "latest").exists():
            must(time.monotonic() < until, "no save: " + (run.folder / "agent0.err").read_text()[-800:])
            time.sleep(0.1)
        pids = subprocess.run(["ip", "netns", "pids", run.hosts.space("b")], capture_output=True, text=True).stdout
        ranks = [int(pid) for pid in pids.split()
                 if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "moonshard-run"]
        must(len(ranks) == 1, f"the ranks of host b: {ranks}")
        os.kill(ranks[0], signal.SIGKILL)
        begin = time.monotonic()
        for agent in agents:
            code = agent.wait(240)
            must(code == 0, f"an agent ended with {code}: " + (run.folder / "agent0.err").read_text()[-1500:])
        text = (run.folder / "agent0.err").read_text(errors="replace")
        run.notes.update(by="0, then torchrun", seconds=round(time.monotonic() - begin, 1),
                         reads=first_finding(text), disk=f"latest: {(run.save / 'latest').read_text().split()[0]}")
        resumed = [json.loads(line)["step"] for line in run.log.read_text().splitlines()
                   if json.loads(line)["event"] == "resume"]
        must(len(resumed) == 1, f"resumed {resumed}")
        run.reference.compare(losses_of(run.log), 400)
        run.notes["resumes"] = "the same losses, by itself"
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        for host in run.hosts.names:
            pids = subprocess.run(["ip", "netns", "pids", run.hosts.space(host)], capture_output=True, text=True).stdout
            for pid in pids.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


@fault("a job of SLURM that is requeued: SIGTERM, then the same job begins anew")
def slurm_requeue(run: Run) -> None:
    def variables(rank: int, restart: int) -> dict[str, str]:
        return {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "4711",
                "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "10.84.0.1,10.84.0.2", "SLURM_RESTART_COUNT": str(restart),
                "RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "MASTER_ADDR": "", "MASTER_PORT": ""}

    def job(restart: int, steps: int) -> None:
        run.part += 1
        words = run.words(steps, "--log", str(run.log), "--save", str(run.save), "--save-every", "40", "--resume")
        run.all = [Rank(run, rank, host, words, **variables(rank, restart)) for rank, host in enumerate("ab")]

    job(0, 1_000_000)
    run.takes(100)
    begin = time.monotonic()
    for rank in run.all:
        rank.send(signal.SIGTERM)
    for rank in run.all:
        code, _ = rank.ends(30)
        must(code == 128 + signal.SIGTERM, f"rank {rank.rank} ended with {code}: {rank.err()[-600:]}")
    run.notes.update(by="all", seconds=round(time.monotonic() - begin, 1), reads=first_finding(run.all[0].err()) or "-")
    latest = run.on_disk()
    must(run.notes["steps_lost"] == 0, "a step was lost")
    job(1, latest + 20)
    for rank in run.all:
        code, _ = rank.ends(120)
        must(code == 0, f"the requeued rank {rank.rank} ended with {code}: {rank.err()[-800:]}")
    run.reference.compare(losses_of(run.log), latest + 20)
    run.notes["resumes"] = "the same losses"


# --- The table ------------------------------------------------------------------------------------------------------
def run_once(place: Place, references: dict[int, Reference], name: str, number: int) -> dict[str, Any]:
    text, body, names = FAULTS[name]
    folder = place.out / f"{name}.{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result: dict[str, Any] = {"fault": name, "number": number, "failed": "", "skipped": ""}
    hosts = Hosts(names)
    run = Run(place, references[len(names)], folder, hosts)
    try:
        body(run)
    except Skipped as why:
        result["skipped"] = str(why)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        result["failed"] = str(error) or type(error).__name__
    finally:
        run.kill()
        hosts.close()
        for mount in run.mounts:
            subprocess.run(["umount", "-l", str(mount)], capture_output=True)
    shutil.rmtree(run.save, ignore_errors=True)
    return {**result, **run.notes}


def cell(text: Any) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")


def spread(values: list[Any]) -> str:
    numbers = sorted(value for value in values if isinstance(value, (int, float)))
    if not numbers:
        return "-"
    return f"{numbers[0]} s" if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]} s"


def table(results: list[dict[str, Any]]) -> Iterator[str]:
    yield "| fault | noticed by rank | after | the user reads | on disk | lost steps | resumed | runs |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, (text, _, _) in FAULTS.items():
        runs = [result for result in results if result["fault"] == name and not result["skipped"]]
        if not runs:
            continue
        good = [result for result in runs if not result["failed"]]
        last = (good or runs)[-1]
        lost = [result["steps_lost"] for result in good if "steps_lost" in result]
        yield "| " + " | ".join(cell(value) for value in (
            text, last.get("by", "-"), spread([result.get("seconds") for result in good]), last.get("reads", "-"),
            last.get("disk", "-"), f"at most {max(lost)}" if lost else "-", last.get("resumes", "-"),
            f"{len(good)} of {len(runs)}")) + " |"


def summary(results: list[dict[str, Any]], name: str) -> str:
    """A line about all runs of a fault."""
    runs = [result for result in results if result["fault"] == name]
    skipped = [result for result in runs if result["skipped"]]
    good = [result for result in runs if not result["failed"] and not result["skipped"]]
    text = f"{name}: {len(good)} of {len(runs) - len(skipped)} good, {spread([result.get('seconds') for result in good])}"
    if skipped:
        text += f", {len(skipped)} skipped ({skipped[0]['skipped']})"
    lost = [result["steps_lost"] for result in good if "steps_lost" in result]
    if lost:
        text += f", at most {max(lost)} steps taken again"
    failed = [f"{result['number'] + 1}: {result['failed'][:200]}" for result in runs if result["failed"]]
    return text + "".join(f"\n    run {line}" for line in failed)


def main() -> int:
    parser = argparse.ArgumentParser(description="faults of a training run on several hosts")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--times", type=int, default=1, help="how often each fault is run, one run after the other")
    parser.add_argument("--torchrun", default="torchrun", help="the command, as in 'python3 -m torch.distributed.run'")
    parser.add_argument("faults", nargs="*", choices=[[], *FAULTS])
    arguments = parser.parse_intermixed_args()
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("skipped: several hosts need root and iproute2")
        return 77
    # A shell that starts this in the background ignores SIGINT for it, and the ranks would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = arguments.out / "tokens.bin"
    number = 1
    tokens = array.array("H")
    for _ in range(4000):
        number = (number * 1103515245 + 12345) % 2**31
        tokens.append((number >> 16) % 64)
    data.write_bytes(tokens.tobytes())
    place = Place(arguments.build.resolve(), arguments.out.resolve(), data.resolve(), arguments.torchrun.split())
    references = {ranks: Reference(place, ranks) for ranks in (2, 3)}
    results: list[dict[str, Any]] = []
    with open(arguments.out / "runs.jsonl", "a", encoding="utf-8") as lines:
        for name in arguments.faults or FAULTS:
            for turn in range(arguments.times):
                begin = time.monotonic()
                result = run_once(place, references, name, turn)
                results.append(result)
                lines.write(json.dumps(result) + "\n")
                lines.flush()
                verdict = "skipped: " + result["skipped"] if result["skipped"] else "FAILED: " + result["failed"] if result["failed"] else f"{result.get('seconds', '-')} s"
                print(f"{name} {turn + 1}/{arguments.times} ({time.monotonic() - begin:.0f} s): {verdict}", flush=True)
    if arguments.times > 1:
        print()
        for name in dict.fromkeys(result["fault"] for result in results):
            print(summary(results, name))
    text = "\n".join(table(results)) + "\n"
    (arguments.out / "table.md").write_text(text, encoding="utf-8")
    print("\n" + text)
    return 1 if any(result["failed"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())

"""All that needs several GPUs, in one go: collectives, training, averages, copies, a killed rank.

    python benchmarks/multi_gpu.py --json benchmarks/results          # on a machine of two or more GPUs

Collectives and training run under torchrun with one process a GPU, the timed steps and the killed rank as
processes of their own, the copies in one process; all with the cuda provider as `maca` and NCCL beneath.
A part that fails is recorded with the end of what it printed, and the others run all the same.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from demo_step import SIZES
from facts import as_json, now, versions
from rendezvous import rank_environments
from step_turns import Setting, compare

import tefl.privateuse1

HERE = Path(__file__).parent
ROOT = HERE.parent
TRAIN = ROOT / "examples" / "train_lm.py"
LENGTH = ["--steps", "30", "--sample", "0", "--eval-every", "1000"]
PROCESSES, TURNS = 4, 20
PATIENCE, DUMP = 20.0, 1.0
"""Seconds of a collective's time-out where a rank is killed, and that NCCL's watchdog has for its notes then:
before it ends the process it sleeps four times as long, of PyTorch's default a minute."""
LIMIT, GRACE = 900.0, 60.0
"""Seconds until a part's process counts as hanging, and until it has ended its ranks when told to end."""


def environment(provider: str) -> dict[str, str]:
    """The variables of a process whose device `maca` is the provider's."""
    chosen = {"TEFL_PROVIDER": provider, "TEFL_DEVICE_NAME": "maca", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **chosen, "OMP_NUM_THREADS": "1"}


def started(command: Sequence[str | Path], provider: str, **variables: str) -> subprocess.Popen[str]:
    """Begin `python COMMAND`."""
    arguments, env = [sys.executable, *map(str, command)], {**environment(provider), **variables}
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, env=env, stdout=pipe, stderr=pipe, text=True)


def put_to_end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End it, and the ranks of a torchrun, which it ends when it is terminated and not when it is killed."""
    process.terminate()
    try:
        return process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "", "it had to be killed"


class Outcome(NamedTuple):
    """What a process printed to either stream, its status, and whether it ended by itself in time."""

    output: str
    errors: str
    status: int
    in_time: bool

    def __str__(self) -> str:
        late = "" if self.in_time else "not done in time, "
        return f"{late}status {self.status}: {(self.output + self.errors)[-3000:]}"


def outcome(process: subprocess.Popen[str], seconds: float) -> Outcome:
    """Wait for its end; it is put to an end after `seconds`."""
    try:
        printed, in_time = process.communicate(timeout=max(seconds, 0)), True
    except subprocess.TimeoutExpired:
        printed, in_time = put_to_end(process), False
    return Outcome(*printed, process.returncode, in_time)


def python(*command: str | Path, provider: str) -> str:
    """Run `python COMMAND` and return what it prints; RuntimeError with the end of that where it fails."""
    done = outcome(started(command, provider), LIMIT)
    if done.status or not done.in_time:
        raise RuntimeError(str(done))
    return done.output


def torchrun(ranks: int, *command: str | Path, provider: str) -> str:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return python(*launcher, *command, provider=provider)


# -------------------------------------------------------------------------------------------- the parts --


def collectives(options: argparse.Namespace) -> Any:
    """Every collective, values and times beside the plain process group."""
    with tempfile.TemporaryDirectory() as folder:
        script = HERE / "bench_collectives.py"
        more = ["--provider", options.provider, "--largest", options.largest, "--json", folder]
        more += ["--rounds", str(options.rounds)]
        torchrun(options.ranks, script, *more, provider=options.provider)
        (file,) = Path(folder).glob("*.json")
        return json.loads(file.read_text())["figures"]


def model_options(size: str, ranks: int) -> list[str]:
    """What train_lm.py is told to train the model whose steps are timed; its batch is that of all ranks."""
    batch, config = SIZES[size]
    options = {
        "batch": batch * ranks,
        "dim": config.dim,
        "layers": config.layers,
        "heads": config.heads,
        "context": config.context,
    }
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


@cache
def train(provider: str, size: str, ranks: int, *how: str) -> list[float]:
    """The losses on the batches of `ranks` ranks: trained in these as `how` says, or in one process."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "losses.json"
        command = [TRAIN, "--device", "maca", "--losses", report, "--out", folder, *LENGTH, *how]
        command += model_options(size, ranks)
        if how:
            torchrun(ranks, *command, provider=provider)
        else:
            python(*command, provider=provider)
        losses: list[float] = json.loads(report.read_text())["train"]
        return losses


def training(options: argparse.Namespace, how: str) -> Any:
    """Losses of several ranks beside one process's; their steps' time beside that of plain ranks."""
    trained = partial(train, options.provider, options.size, options.ranks)
    single = trained()
    results = {}
    for name, more in (("average", ()), ("sum", ("--sum-gradients",))):
        losses = trained(f"--{how}", *more)
        worst = max(abs(a - b) / b for a, b in zip(losses, single, strict=True))
        results[name] = {"largest_relative_difference_of_losses": worst, "losses_agree": worst < 1e-4}
    setting = Setting((options.plain, "maca"), options.provider, options.size, how, options.ranks)
    return {**results, "step_time": compare(setting, PROCESSES, TURNS)}


def copies(options: argparse.Namespace) -> Any:
    """Copies on side streams, values and order, in one process with two devices."""
    command = [__file__, "--part", "copies", "--provider", options.provider, "--plain", options.plain]
    return json.loads(python(*command, provider=options.provider).splitlines()[-1])


def is_telling(line: str) -> bool:
    """Whether a line says how a rank ended: ours, or that of NCCL's watchdog, which ends the process."""
    return line.startswith("ended:") or "caught collective operation timeout" in line


def killed(options: argparse.Namespace) -> Any:
    """One rank is killed: how long the others take to end, and what they say.

    Not under torchrun, which would end the others itself.
    """
    start, command = time.monotonic(), [__file__, "--part", "killed", "--provider", options.provider]
    patience = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": str(int(1000 * DUMP))}
    ranks = [
        started(command, options.provider, **variables, **patience)
        for variables in rank_environments(options.ranks)
    ]
    outcomes = [outcome(rank, start + 15 * PATIENCE - time.monotonic()) for rank in ranks]
    texts = [each.output + each.errors for each in outcomes]
    lines = [line for text in texts for line in text.splitlines() if is_telling(line)]
    was_killed = outcomes[-1].status == -signal.SIGKILL
    if not (lines and was_killed and all(each.in_time for each in outcomes)):
        raise RuntimeError("\n".join(map(str, outcomes)))
    return {
        "seconds": time.monotonic() - start,
        "time_out": PATIENCE,
        "watchdog_sleeps": 4 * DUMP,
        "statuses": [each.status for each in outcomes],
        "says": lines,
    }


# --------------------------------------------------------------- what runs in the processes started --


def copy_in_process(options: argparse.Namespace) -> None:
    """Print a JSON object: pair of devices -> whether values and order were right."""
    tefl.privateuse1.device_arg("maca")  # claims it
    count, outcome = 1 << 24, {}
    pairs = [("maca:0", "maca:1"), ("maca:1", "maca:0")]
    if options.plain == "cuda":
        pairs += [("maca:0", "cuda:1"), ("cuda:1", "maca:0"), ("maca:0", "cpu"), ("cpu", "maca:1")]
    for source_name, target_name in pairs:
        right = True
        for step in range(20):
            streams = [torch.Stream(device=f"maca:{index}") for index in range(2)]
            with streams[0], streams[1]:
                source = torch.full((count,), 0.0).to(source_name)
                for _ in range(50):
                    source.add_(1)  # work that is still under way when the copy is called
                target = source.to(target_name, non_blocking=target_name != "cpu")
                source.fill_(step)  # a copy that came too late would see this
                right &= bool(target.eq(50).all().item())
        outcome[f"{source_name} to {target_name}"] = right
    print(json.dumps(outcome))


def die_in_process() -> None:
    """Run in each rank: the last is killed after a first collective, the others say how they end."""
    tefl.privateuse1.device_arg("maca")  # claims it
    local = int(os.environ["LOCAL_RANK"])
    torch.get_device_module("maca").set_device(local % torch.get_device_module("maca").device_count())
    dist.init_process_group(timeout=timedelta(seconds=PATIENCE))
    tensor = torch.ones(1 << 20, device="maca")
    dist.all_reduce(tensor)
    tensor.cpu()
    if dist.get_rank() == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        for _ in range(3):
            dist.all_reduce(tensor)
            tensor.cpu()
    except RuntimeError as error:
        taken = time.monotonic() - start
        print(
            f"ended: rank {dist.get_rank()} after {taken:.1f} s: {type(error).__name__}: {error}", flush=True
        )
    os._exit(1)


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "collectives": collectives,
    "ddp": partial(training, how="ddp"),
    "fsdp": partial(training, how="fsdp"),
    "copies": copies,
    "killed": killed,
}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--provider", default="cuda", help="cuda; or sim, to try the script itself (cuda)")
    parser.add_argument("--plain", default="cuda", help="the device to compare with (cuda)")
    parser.add_argument("--ranks", type=int, default=0, help="processes, 2 at least (one for each GPU)")
    parser.add_argument("--largest", default="1G", help="bytes of the largest collective (1G)")
    parser.add_argument("--rounds", type=int, default=200, help="of a large collective (200)")
    parser.add_argument("--size", default="several", choices=SIZES, help="of the model (several)")
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS), help="parts to run")
    parser.add_argument("--part", choices=("copies", "killed"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write the results there")
    options = parser.parse_args()
    seen = torch.cuda.device_count()
    options.ranks = options.ranks or max(2, seen)
    if options.provider == "cuda" and seen < options.ranks:
        parser.error(
            f"{options.ranks} ranks want as many NVIDIA GPUs, and this process sees {seen}: use a CUDA "
            "build of PyTorch on such a machine, or try the script itself with --provider sim --plain cpu"
        )
    return options


def main() -> int:
    options = parse_options()
    if options.part == "copies":
        copy_in_process(options)
        return 0
    if options.part == "killed":
        die_in_process()
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {
        **versions(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
        "provider": options.provider,
        "ranks": options.ranks,
        "date": now(),
    }
    failed = 0
    for name in options.only:  # what has been measured is kept, whatever becomes of the parts to come
        try:
            facts[name] = PARTS[name](options)
        except Exception as error:  # noqa: BLE001  whatever it is, it is recorded, and the others run
            facts[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed = 1
        print(f"{name}: {json.dumps(facts[name])[:2000]}", flush=True)
        if options.json:
            file = f"multi-gpu-{options.provider}-{options.ranks}-ranks-{facts['date'][:10]}.json"
            (options.json / file).write_text(as_json(facts))
    return failed


if __name__ == "__main__":
    sys.exit(main())

"""The script for Slurm in docs/many-gpus.md, under Slurm itself: two nodes on this machine, with two ranks each.

Skipped where Slurm is not installed (on Debian `apt-get install slurm-wlm munge`), and for others than root.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks_of

PROGRAMS = ("unshare", "munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "scancel")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
SMALL = "--arch test_resnet --img-size 32 -b 2 --workers 1 --no-amp --device cpu --val-fraction 0.25 --log-interval 1"
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu
SlurmUser=root
SlurmdUser=root
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=2 RealMemory=1000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(name, path=PATH) is None for name in PROGRAMS), reason="Slurm is not installed"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start Slurm's daemons"),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """`slurm("sbatch", ...)`: what a command of a small cluster prints. Its nodes have two GPUs that do not exist."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    configuration.write_text(CONFIGURATION.format(host=os.uname().nodename, folder=folder))
    for number in range(2):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(configuration), "OMP_NUM_THREADS": "1"}
    munge = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("key-file", "pid-file", "seed-file")]
    munge += [f"--socket={folder}/munge.socket", f"--log-file={folder}/munge.log"]
    daemons = [["munged", "--force", "--foreground", *munge], ["slurmctld", "-D"]]
    hosts = folder / "hosts"  # jobs find the nodes by their names, and the machine's own file stays as it is
    hosts.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n1 n2\n")
    inside = ["unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    daemons += [[*inside, "slurmd", "-D", "-N", name] for name in ("n1", "n2")]
    started = []

    def call(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    try:
        for daemon in daemons:
            started.append(subprocess.Popen(daemon, env=environment, cwd=folder, stderr=subprocess.DEVNULL))
            time.sleep(1)
        once(lambda: "idle" in (states := call("sinfo", "-h", "-o", "%T")) and "\n" not in states, 60)
        yield call
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)


def once(true: Callable[[], bool], seconds: float = 300) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture
def script(tmp_path: Path, image_folder: Path) -> Callable[[int], Path]:
    """`script(epochs)`: the page's, of a smaller training on two nodes, in a file."""
    (text,) = (block.text for block in blocks_of(ROOT / "docs/many-gpus.md") if "#SBATCH" in block.text)
    text = text.replace("--nodes=4", "--nodes=2").replace("gpus-per-node=8", "gpus-per-node=2")
    text = text.replace("--cpus-per-task=96", "--cpus-per-task=2")
    text = text.replace(
        "#SBATCH --time=12:00:00",
        f"#SBATCH --time=12:00:00\n#SBATCH --output={tmp_path}/said\n#SBATCH --open-mode=append",
    )

    def write(epochs: int) -> Path:
        small = f"{image_folder} {SMALL} --epochs {epochs}"
        own = text.replace("/shared/D --arch resnet50 -b 256", small).replace("/shared/runs", f"{tmp_path}/runs")
        (tmp_path / "job.sh").write_text(own)
        return tmp_path / "job.sh"

    return write


def ended(slurm: Callable[..., str], job: str) -> bool:
    return (
        re.search(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", slurm("scontrol", "show", "job", job))
        is not None
    )


def test_two_nodes_train(slurm: Callable[..., str], script: Callable[[int], Path], tmp_path: Path) -> None:
    job = slurm("sbatch", "--parsable", str(script(1)))
    once(lambda: ended(slurm, job))
    said = (tmp_path / "said").read_text()
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", job), said
    assert "4 ranks" in said
    assert (tmp_path / "runs/resnet50/last").exists()


def test_a_job_that_is_requeued_goes_on(
    slurm: Callable[..., str], script: Callable[[int], Path], tmp_path: Path
) -> None:
    job = slurm("sbatch", "--parsable", str(script(30)))
    once((tmp_path / "runs/resnet50/last").exists)
    slurm("scontrol", "requeue", job)
    once(lambda: "Restarts=1" in slurm("scontrol", "show", "job", job))
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
    once(lambda: ended(slurm, job))
    said = (tmp_path / "said").read_text()
    assert "JobState=COMPLETED" in slurm("scontrol", "show", "job", job), said
    assert re.search(r"resum\w+ .*after step \d+ of", said), said


def test_the_signal_before_the_end_saves_a_checkpoint(
    slurm: Callable[..., str], script: Callable[[int], Path], tmp_path: Path
) -> None:
    """What --signal=TERM@120 does two minutes before the time is up."""
    job = slurm("sbatch", "--parsable", str(script(3000)))
    metrics = tmp_path / "runs/resnet50/metrics.jsonl"
    once(lambda: metrics.exists() and metrics.read_text().count('"train"') > 3)
    slurm("scancel", f"--signal={signal.SIGTERM.name.removeprefix('SIG')}", job)
    once(lambda: ended(slurm, job))
    assert (tmp_path / "runs/resnet50/last").exists()
    assert "SIGTERM" in (tmp_path / "said").read_text()

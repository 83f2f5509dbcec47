"""The script for Slurm in docs/many-gpus.md: bash reads it, and its last command trains with two ranks."""

import os
import re
import subprocess

from .pages import ROOT, blocks_of

PAGE = ROOT / "docs/many-gpus.md"


def test_the_script_trains(python, tmp_path, image_folder):
    (script,) = (block.text for block in blocks_of(PAGE) if "#SBATCH" in block.text)
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "scontrol": "echo 127.0.0.1",
        "srun": 'shift; exec "$@"',  # without its own flag
        "torchrun": f'exec {python} -m torch.distributed.run "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    small = "--arch test_resnet --img-size 32 -b 4 --workers 1 --no-amp --epochs 1"
    script = script.replace("/shared/D --arch resnet50 -b 256", f"{image_folder} {small}")
    script = re.sub(r"/shared/runs", str(tmp_path / "runs"), script).replace("$MASTER:29500", "127.0.0.1:0")
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_NNODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_JOB_ID": "7",
    }
    ran = subprocess.run(["bash"], input=script, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert "2 ranks" in ran.stdout
    assert (tmp_path / "runs" / "resnet50" / "last").exists()

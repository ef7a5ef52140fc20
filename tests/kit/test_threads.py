"""Compiled kernels use the physical cores, unless TVM_NUM_THREADS says otherwise."""

import os
import subprocess
import sys

import pytest

from chapters.kit.machine import physical_cores
from chapters.runner.course import ROOT

ASK = "import chapters.kit, tvm; print(tvm.runtime.num_threads())"


@pytest.mark.parametrize(("said", "used"), [(None, physical_cores()), ("1", 1)])
def test_threads_of_compiled_kernels(said, used):
    environment = {key: value for key, value in os.environ.items() if key != "TVM_NUM_THREADS"}
    environment |= {"TVM_NUM_THREADS": said} if said else {}
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(used)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_process_that_may_use_one_core_has_one():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert physical_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)

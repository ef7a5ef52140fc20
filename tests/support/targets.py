"""A target for tests that ask what a program computes, not how fast."""

from __future__ import annotations

from tvm.target import Target

from chapters.kit.machine import llvm_host

# as QUICK of chapters/kit/cases/guarded.py, with this processor's instructions: portable code converts each float16 by
# a call
QUICK_HERE = Target({"kind": "llvm", "opt-level": 0, "mcpu": llvm_host()["cpu"]})

"""torch.clamp(x, 1, -1) becomes 1 in place of -1: TVM's clip lets the lower bound win.

Should: -1, because PyTorch lets the upper bound win. (Needs PyTorch.)
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/models/from_torch.py
"""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class Clamp(torch.nn.Module):
    def forward(self, x):
        return torch.clamp(x, 1.0, -1.0)


program = torch.export.export(Clamp(), (torch.ones(2),))
main = relax.VirtualMachine(tvm.compile(from_exported_program(program), "llvm"), tvm.cpu())["main"]
got = main(tvm.runtime.tensor(np.zeros(2, "float32")))[0].numpy().tolist()
print(f"TVM gives {got}; should be [-1.0, -1.0]")
raise SystemExit(got == [-1, -1])

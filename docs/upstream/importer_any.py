"""The PyTorch importer makes `any` of numbers their largest: -1 and 0 give 0, and the dtype is not bool.

Should: True, because one of them is not 0. (Needs PyTorch.)
Kind: wrong numbers
Upstream: https://github.com/apache/tvm/pull/20376
Avoided in: chapters/kit/models/from_torch.py
"""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class Any(torch.nn.Module):
    def forward(self, x):
        return torch.any(x, dim=1)


program = torch.export.export(Any(), (torch.ones(1, 2),))
main = relax.VirtualMachine(tvm.compile(from_exported_program(program), "llvm"), tvm.cpu())["main"]
got = main(tvm.runtime.tensor(np.array([[-1, 0]], "float32")))[0].numpy().tolist()
print(f"TVM gives {got}; should be [True]")
raise SystemExit(got == [True])

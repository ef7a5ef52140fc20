"""The PyTorch importer gives the quotient of two integers the integers' dtype, and cuts off its fraction.

Should: 3.5 in float32 for 7 / 2, as PyTorch. (Needs PyTorch.)
Kind: wrong numbers
Upstream: https://github.com/apache/tvm/pull/20373
Avoided in: chapters/kit/models/torch_importer.py
"""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class Half(torch.nn.Module):
    def forward(self, x):
        return x / 2


program = torch.export.export(Half(), (torch.ones(2, dtype=torch.int64),))
main = relax.VirtualMachine(tvm.compile(from_exported_program(program), "llvm"), tvm.cpu())["main"]
got = main(tvm.runtime.tensor(np.array([7, 8])))[0].numpy().tolist()
print(f"TVM gives {got} for [7, 8]; should be [3.5, 4.0]")
raise SystemExit(got == [3.5, 4])

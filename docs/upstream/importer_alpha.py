"""The PyTorch importer ignores the factor of torch.add(a, b, alpha=2).

Should: a + 2 * b. (Needs PyTorch.)
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/models/from_torch.py
"""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program


class AddTwice(torch.nn.Module):
    def forward(self, a, b):
        return torch.add(a, b, alpha=2)


program = torch.export.export(AddTwice(), (torch.ones(2), torch.ones(2)))
main = relax.VirtualMachine(tvm.compile(from_exported_program(program), "llvm"), tvm.cpu())["main"]
got = main(*[tvm.runtime.tensor(np.ones(2, "float32"))] * 2)[0].numpy().tolist()
print(f"TVM gives {got} for ones; should be [3.0, 3.0]")
raise SystemExit(got == [3, 3])

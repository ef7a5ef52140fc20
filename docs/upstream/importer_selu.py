"""The PyTorch importer leaves out the scale of SELU, 1.0507.

Should: 1.0507 * x for an x above 0. (Needs PyTorch.)
Kind: wrong numbers
Upstream: none found
Avoided in: chapters/kit/models/from_torch.py
"""

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch import from_exported_program

program = torch.export.export(torch.nn.SELU(), (torch.ones(2),))
main = relax.VirtualMachine(tvm.compile(from_exported_program(program), "llvm"), tvm.cpu())["main"]
got = main(tvm.runtime.tensor(np.ones(2, "float32")))[0].numpy()
print(f"TVM gives {got} for ones; should be [1.0507 1.0507]")
raise SystemExit(bool(np.allclose(got, 1.0507, atol=1e-4)))

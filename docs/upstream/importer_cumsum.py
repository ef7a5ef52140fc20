"""The PyTorch importer gives a cumulative sum the dtype of its operand; PyTorch counts booleans in int64.

Should: int64, as PyTorch. (Needs PyTorch.)
Kind: wrong numbers
Upstream: https://github.com/apache/tvm/pull/20374
Avoided in: chapters/kit/models/torch_importer.py
"""

import torch
from tvm.relax.frontend.torch import from_exported_program


class Count(torch.nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 0)


program = torch.export.export(Count(), (torch.ones(4, dtype=torch.bool),))
got = from_exported_program(program)["main"].ret_ty
print(f"TVM gives {got}; should be int64")
raise SystemExit('"int64"' in str(got))

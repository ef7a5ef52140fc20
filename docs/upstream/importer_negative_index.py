"""The PyTorch importer makes x[index] a take in mode "fast", which reads outside of x if an index is negative.

Should: mode "wrap", which counts a negative index from the end, as PyTorch does. (Needs PyTorch.)
Kind: wrong numbers
Upstream: https://github.com/apache/tvm/issues/19436
Avoided in: chapters/kit/models/from_torch.py
"""

import torch
from tvm.relax.frontend.torch import from_exported_program


class Last(torch.nn.Module):
    def forward(self, x, index):
        return x[index]


program = torch.export.export(Last(), (torch.ones(4), torch.tensor([-1])))
text = from_exported_program(program)["main"].script()
(got,) = [line.split("= ")[-1] for line in text.splitlines() if "R.take" in line]
print(f"TVM gives {got}; should be in mode wrap")
raise SystemExit('"fast"' not in got)

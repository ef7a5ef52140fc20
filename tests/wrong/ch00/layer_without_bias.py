"""0.2: the layer has no bias."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.2"
WHAT = "the layer was made with bias=False"
WHY = (
    "Then the exported function has no parameter b: what a layer holds decides the signature "
    "of what is compiled."
)
READ = "chapters/ch00_first_module/lesson.md, “Three ways to write it”"


class Net(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(16, 8, bias=False)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.relu(self.linear(x))


def from_nn():
    mod, _weights = Net().export_tvm(spec={"forward": {"x": nn.spec.Tensor(["n", 16], "float32")}})
    return mod

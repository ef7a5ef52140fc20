"""0.2: relu is missing."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.2"
WHAT = "the result of the layer is returned without relu"
WHY = "nn.Linear computes x @ w.T + b and nothing more; the activation is a call of its own."
READ = "chapters/ch00_first_module/lesson.md, “Three ways to write it”"


class Net(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(16, 8, bias=True)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.linear(x)


def from_nn():
    mod, _weights = Net().export_tvm(spec={"forward": {"x": nn.spec.Tensor(["n", 16], "float32")}})
    return mod

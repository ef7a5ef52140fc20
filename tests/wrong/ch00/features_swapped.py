"""0.2: in and out features are swapped."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.2"
WHAT = "in_features and out_features are swapped"
WHY = (
    "nn.Linear(in_features, out_features): x has 16 features and the result 8. The weight is "
    "then stored as (8, 16)."
)
READ = "chapters/ch00_first_module/lesson.md, “Three ways to write it”"


class Net(nn.Module):
    def __init__(self):
        self.linear = nn.Linear(8, 16, bias=True)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return nn.op.relu(self.linear(x))


def from_nn():
    mod, _weights = Net().export_tvm(spec={"forward": {"x": nn.spec.Tensor(["n", 16], "float32")}})
    return mod

"""0.3: casts what it is given."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.3"
WHAT = "every array is made float32 before the call"
WHY = (
    "A function says of each tensor which dtype it has, and the VM refuses another. Weights are often "
    "float16, token numbers int32; pass on what you are given."
)
READ = "chapters/ch00_first_module/lesson.md, “When it must refuse”"


def run(mod, name, *arrays):
    executable = tvm.compile(mod, target="llvm")
    vm = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(np.array(array, dtype="float32")) for array in arrays]
    return vm[name](*tensors).numpy()

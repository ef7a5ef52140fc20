"""0.3: the result is not converted."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.3"
WHAT = "the result is a TVM tensor"
WHY = "A TVM tensor may lie on a GPU, so it is no NumPy array: .numpy() copies it to the host."
READ = "chapters/ch00_first_module/lesson.md, “Run it”"


def run(mod, name, *arrays):
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return vm[name](*[tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays])

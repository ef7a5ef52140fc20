"""0.3: the name is ignored."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.3"
WHAT = "the function called is always main"
WHY = "A module holds many functions; the exported layer above has no main at all."
READ = "chapters/ch00_first_module/lesson.md, “Run it”"


def run(mod, name, *arrays):
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays]).numpy()

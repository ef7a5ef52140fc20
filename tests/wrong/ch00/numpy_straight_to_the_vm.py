"""0.3: NumPy arrays go to the VM as they are."""

from solutions.ch00_first_module.first_module import *

EXERCISE = "0.3"
WHAT = "NumPy arrays are given to the VM without tvm.runtime.tensor"
WHY = (
    "The VM takes the memory of an array as it lies. A strided array is refused; an unaligned "
    "one may crash the process, on another CPU or for another size than the one you tried. "
    "tvm.runtime.tensor copies into aligned memory."
)
READ = "chapters/ch00_first_module/lesson.md, “Run it”"


def run(mod, name, *arrays):
    vm = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return vm[name](*arrays).numpy()

"""Another correct design for exercises 11.3 and 11.5.

**11.3, users first.** The reference goes through the block once and remembers what is unpacked. This version takes one
unpacked matrix at a time and looks at its users. Each user must be a kernel call of this block that `serves` accepts,
with no write between the two calls. Each condition is one line of code. The price is time: for every user, the code
looks again at all bindings between the matrix and that user.

**11.5, computed.** The reference is a choice made by hand from the table. This version tries every set of kinds. It
stays right if the perplexities are measured again, but it does not explain why a set is the best.
"""

from itertools import combinations

from solutions.ch11_a_real_model.quantized import *


def fusible(
    mod: IRModule, block: relax.DataflowBlock, serves: Callable[[Call, Call], bool]
) -> dict[Call, Call]:
    users = relax.analysis.udchain(block)
    places = {binding.var: at for at, binding in enumerate(block.bindings)}
    calls = [binding.value for binding in block.bindings]
    found: dict[Call, Call] = {}

    def can_unpack(matrix: relax.Var, user: relax.Var) -> bool:
        at, after = places[matrix], places.get(user)
        if after is None or not given.is_kernel_call(calls[after]):
            return False
        first, *others = given.arguments(calls[after])
        alone = first.same_as(matrix) and not any(one.same_as(matrix) for one in others)
        written = any(may_write(call) for call in calls[at + 1 : after + 1])
        return alone and not written and serves(calls[at], calls[after])

    for var, at in places.items():
        private = isinstance(var, relax.DataflowVar) and given.is_kernel_call(calls[at])
        if not private or not given.unpacks(mod, calls[at]):
            continue
        if all(can_unpack(var, user) for user in users[var]):
            found.update({calls[places[user]]: calls[at] for user in users[var]})
    return found


def kept_in_8_bits() -> set[str]:
    kinds = given.KINDS
    extra = {kind: kinds[kind].in_8_bits - kinds[kind].in_4_bits for kind in kinds}
    sets = [set(some) for size in range(len(kinds) + 1) for some in combinations(kinds, size)]
    allowed = [some for some in sets if sum(extra[kind] for kind in some) <= given.BUDGET]
    return max(allowed, key=lambda some: sum(kinds[kind].loss for kind in some))

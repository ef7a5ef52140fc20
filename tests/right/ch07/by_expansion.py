"""7.1 by expanding into signed terms first; 7.2 always starts from f(init), also where init is 0."""

from solutions.ch07_when_fusion_is_sound.soundness import *


def terms(value, total, factor):
    """The terms of `value`, each with what multiplies it: a list of (factor, None for the sum or an addend)."""
    if not mentions(value, total.source):
        return [(factor, value)]
    if isinstance(value, TensorLoad) and structural_equal(value, total):
        return [(factor, None)]
    if isinstance(value, (Add, Sub)):
        left, right = terms(value.a, total, factor), terms(value.b, total, factor)
        if isinstance(value, Sub) and right is not None:
            right = [(const(-1, str(total.source.dtype)) * f, addend) for f, addend in right]
        return None if left is None or right is None else left + right
    if isinstance(value, Mul):
        for constant, rest in ((value.a, value.b), (value.b, value.a)):
            if not mentions(constant, total.source):
                return terms(rest, total, factor * constant)
    return None


def affine(value, total):
    dtype = str(total.source.dtype)
    found = terms(value, total, const(1, dtype))
    if found is None:
        return None
    scale, addend = const(0, dtype), const(0, dtype)
    for factor, term in found:
        if term is None:
            scale = scale + factor
        else:
            addend = addend + factor * term
    return scale, addend


def enter_init(value, step, init, total):
    op = operation(step, total)
    start = replace_loads(value, total.source, init)
    if op is None:
        return None
    if op is not Add:
        return ("init", start, step) if grouped(value, total, op) else None
    form = affine(value, total)
    if form is None:
        return None
    if is_number(form[0], 1):
        return "init", start, step
    return "scaled", start, total + affine(step, total)[1] * form[0]

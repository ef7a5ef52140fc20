"""`compile` on what strangers bring: dtypes, arguments, sizes and operators of small models, one per kind of report."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[models]'")

from torch import nn  # noqa: E402
from torch.export import Dim, export  # noqa: E402

from chapters.ch10_imported_models.compile_model import compile_module, largest_error, tolerance  # noqa: E402
from chapters.kit.models.from_torch import (  # noqa: E402
    export_program,
    import_program,
    resize_inputs,
    run_torch,
    sizes_of,
    tensors_of,
)
from solutions.ch10_imported_models.imported_models import canonicalize  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
NARROW = (torch.float16, torch.bfloat16)
F = nn.functional


class Call(nn.Module):
    """A function of tensors as a module, with the modules and buffers that it uses."""

    def __init__(self, call, **parts):
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.call(self, *args, **kwargs)


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def compare(model, inputs) -> list[float]:
    """Compile once, and compare with PyTorch at the example sizes and then at all others; the errors."""
    program = export_program(model, inputs)
    mod = import_program(program, inputs)
    run, allowed = compile_module(canonicalize()(mod)), tolerance(mod)
    every = [inputs, *(others for _, others in resize_inputs(program, inputs))]
    return [largest_error(run(*tensors_of(one)), run_torch(model, one), allowed) for one in every]


# name: (a module, the shape of its input)
LAYERS = {
    "linear": (lambda: nn.Sequential(nn.RMSNorm(24), nn.Linear(24, 40), nn.GELU()), (7, 24)),
    "convolution": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.AvgPool2d(2)
        ),
        (2, 3, 10, 10),
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(12, 2, 16, batch_first=True), (2, 5, 12)),
    "recurrence": (lambda: Call(lambda my, x: my.lstm(x)[0], lstm=nn.LSTM(6, 5)), (4, 2, 6)),
    "a sum of 5000 ones": (lambda: Call(lambda my, x: (x * 0 + 1).sum(-1)), (2, 5000)),
    "its order": (lambda: Call(lambda my, x: (x.topk(3), x.max(-1), x.argmax(-1))), (5, 12)),
    "a NaN is found": (lambda: Call(lambda my, x: x.log().isnan() | (x > 0.1)), (5, 12)),
    "addmm": (lambda: Call(lambda my, x: torch.addmm(x[0], x, x, beta=0.5, alpha=2)), (6, 6)),
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_weights_and_inputs_of_16_bits(name, dtype):
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    model, x = build().to(dtype).eval(), random(*shape, dtype=dtype)
    mod = import_program(model, (x,))
    found = compile_module(canonicalize()(mod))(*tensors_of((x,)))
    assert (
        largest_error(found, run_torch(model, (x,)), tolerance(mod)) <= 2 * torch.finfo(dtype).eps
    )
    exact = run_torch(model.double(), (x.double(),))[0]
    rounded = found[0].numpy().astype("float64")
    assert np.abs(rounded - exact).max() <= 16 * torch.finfo(dtype).eps * np.abs(exact).max()


def test_float64_keeps_its_digits():
    (error,) = compare(nn.Linear(6, 4).double(), (random(3, 6, dtype=torch.float64),))
    assert error < 1e-14


class Attention(nn.Module):
    """Takes keywords, and returns a dict with a number, None and a tuple in it."""

    def __init__(self):
        super().__init__()
        self.query, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x, *, scale=1.0, mask=None, cache=None):
        h = self.norm(x)
        weights = torch.softmax(self.query(h) @ h.mT * scale + (0 if mask is None else mask), -1)
        return {"out": x + weights @ h, "none": None, "layers": 3, "weights": (weights, cache)}


X, MASK = random(2, 5, 16), random(5, 5)


@pytest.mark.parametrize(
    "inputs",
    [
        (X,),
        {"x": X, "mask": MASK},
        ((X,), {"scale": 2.0, "mask": MASK}),
        {"mask": MASK, "x": X, "cache": None},
        {"x": X, "cache": {"keys": (X, [MASK]), "length": 3}},
    ],
)
def test_arguments_and_results_of_any_form(inputs):
    (error,) = compare(Attention().eval(), inputs)
    assert error < 1e-6


BATCH, LENGTH = Dim("batch"), Dim("length", max=512)
DYNAMIC = {  # name: (module, arguments, keywords, dynamic shapes)
    "batch of images": (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (random(4, 3, 8, 8),), {}, ({0: BATCH},),
    ),
    "batch and length": (
        Attention(), (X,), {"mask": MASK},
        {"x": {0: BATCH, 1: LENGTH}, "mask": {0: LENGTH, 1: LENGTH}},
    ),
    "bfloat16": (Attention().bfloat16(), (X.bfloat16(),), {}, {"x": {0: BATCH, 1: LENGTH}}),
    "causal": (
        Call(lambda my, x: F.scaled_dot_product_attention(x, x, x, is_causal=True)),
        (random(2, 3, 6, 8),), {}, ((({0: BATCH, 2: LENGTH}),),),
    ),
    "slices": (
        Call(lambda my, x: (x[:, -1:] + x[..., -4:].amax(), my.rises(torch.cat([x, x[:, -1:]], 1))),
             rises=lambda h: (h[:, 1:] - h[:, :-1] > 0).cumsum(-1)),
        (random(3, 9),), {}, (({0: BATCH, 1: Dim("columns", min=5)},),),
    ),
    "two lengths": (
        Call(lambda my, x, y: torch.cat([x, y]).diff(dim=-1).cumsum(0) / x.shape[0]), (random(5, 3), random(4, 3)), {},
        (({0: BATCH}, {0: LENGTH}),),
    ),
    "a branch": (
        Call(lambda my, x: torch.cond(x.sum() > 0, torch.sin, lambda x: x.cos() * 2, (x,))),
        (random(5, 3),), {}, (({0: BATCH},),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DYNAMIC)
def test_an_exported_program_of_any_size_is_compiled_once(name):
    model, args, kwargs, shapes = DYNAMIC[name]
    with torch.no_grad():
        program = export(model.eval(), args, kwargs, dynamic_shapes=shapes)
    assert len(sizes_of(program)) in (1, 2)
    errors = compare(program, program.example_inputs)
    assert len(errors) == 4 and max(errors) < (0.01 if name == "bfloat16" else 2e-6)


def autocast(my, x):
    with torch.autocast("cpu", torch.bfloat16):
        return my.linear(x)


def masks(my, x):
    mask = x > 0
    for at in range(8):
        mask = (mask & (x < at)) | (~mask & (x > -at))
    return torch.where(mask, x, -x)


def halves(my, x):
    whole = (x * 10).int()
    for _ in range(8):
        whole = (whole & 7) + whole // 2 * (whole < 5)
    return whole.float()


KINDS = {  # name: (a function of the module and its inputs, its parts, the inputs)
    "a chain of truth values": (masks, {}, ()),
    "a chain of integers": (halves, {}, ()),
    "a branch": (lambda my, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), {}, ()),
    "autocast": (autocast, {"linear": nn.Linear(6, 4)}, ()),
    "a half product": (lambda my, x: (x.half() @ x.half().T).float(), {}, ()),
    "negative indices": (lambda my, x: x[:, -1] + x[-1, 0] + x[:, [-2]].sum(), {}, ()),
    "a buffer that is written": (
        lambda my, x: x * my.count.add_(1),
        {"count": nn.Buffer(torch.ones(1))},
        (),
    ),
    "sums of truth values": (
        lambda my, x: (x > 0).cumsum(-1) - x.cumsum(0) + (x[0] > 0).int().cumsum(0),
        {},
        (),
    ),
    "sums with factors": (
        lambda my, x: torch.add(x, x[0], alpha=2.5) + torch.sub(x[1], x, alpha=-3),
        {},
        (),
    ),
    "a sparse result": (lambda my, x: x.relu().to_sparse(), {}, ()),
    "a sparse buffer": (lambda my, x: my.a @ x, {"a": nn.Buffer(torch.eye(5).to_sparse())}, ()),
    "a negative bit": (lambda my, x: x * 2, {}, torch.complex(X, X).conj().imag),
    "weight_norm": (
        lambda my, x: my.linear(x),
        {"linear": nn.utils.weight_norm(nn.Linear(6, 4))},
        (),
    ),
    "a mask of truth values": (
        lambda my, x: F.scaled_dot_product_attention(*[x[None]] * 3, attn_mask=x @ x.T > 0),
        {},
        (),
    ),
    "amax and amin": (lambda my, x: x.amax((0, 1)) + x.amin(0) + x.amax(-1, True), {}, ()),
    "histogram": (lambda my, x: torch.histc(x, bins=5, min=-1, max=1), {}, ()),
    "a product over an axis": (lambda my, x: x.prod(-1, keepdim=True), {}, ()),
    "integers divided": (lambda my, x: x.int() / 3 + x.int() * 2.5 + x.int().sum(0), {}, ()),
    "integers clamped": (lambda my, x: (x * 9).int().clamp(min=1) // 2 + x.clamp(2, -1), {}, ()),
    "any of numbers": (
        lambda my, x: (
            torch.cat([(-x.abs()).any(0), (x > 9).any(1), x.any()[None]]).float()
            + ((x * 2).to(torch.uint8) * 0 + 2).any(1, True)
        ),
        {},
        (),
    ),
    "groups of rows": (
        lambda my, x: torch._grouped_mm(x, my.w, my.ends),
        {
            "w": nn.Buffer(random(3, 8, 16).bfloat16()),
            "ends": nn.Buffer(torch.tensor([2, 2, 5], dtype=torch.int32)),
        },
        random(5, 8).bfloat16(),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_reports(name):
    call, parts, x = KINDS[name]
    x = random(5, 6) if isinstance(x, tuple) else x
    (error,) = compare(Call(call, **parts).eval(), (x,))
    assert error < (0.01 if "rows" in name or name == "autocast" else 1e-6)


@pytest.mark.parametrize(
    "step",
    [
        lambda x: x * 1.01 - x * x,
        lambda x: torch.cat([x * 1.01 - x * x, x.abs() * x])[:5],
        lambda x: torch.where(x > 0.1, x * 1.01 - x, x * x),
    ],
    ids=["products", "joined", "chosen"],
)
def test_bfloat16_is_rounded_where_pytorch_rounds(step):
    def steps(my, x):
        x = x.bfloat16()
        for _ in range(4):
            x = step(x)
        return x.float()

    assert compare(Call(steps).eval(), (random(5, 6),)) == [0]


def test_the_tolerance_grows_with_the_sums_and_with_what_is_rounded():
    def allowed(model, x):
        return tolerance(import_program(model, (x,)))

    short, long = (allowed(nn.Linear(n, 4), random(3, n)) for n in (256, 4096))
    assert short == pytest.approx(long / 4) and long < 5e-4
    half = allowed(nn.Linear(256, 4).half(), random(3, 256).half())
    assert half == pytest.approx(short + 4 * 2**-10)

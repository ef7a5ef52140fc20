"""What `chat --without` leaves out, and what `chat --explain` says of each kernel."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from chapters.ch11_a_real_model import bench_answers
from chapters.ch11_a_real_model.passes import MULTIPLY, PASSES_OF, passes_without, phases
from chapters.kit.cases.guard_zones import QUICK_HERE
from chapters.kit.quantized.dot_products import dot_products


def names(**facts) -> list[str]:
    found = phases(QUICK_HERE, **facts)
    return [str(one.info.name) for passes in found.values() for one in passes]


@pytest.mark.parametrize("exercise", PASSES_OF)
def test_the_passes_of_an_exercise_are_left_out(exercise):
    left = [name for name in names() if name not in PASSES_OF[exercise]]
    assert names(without=exercise) == left and len(left) < len(names())


def test_a_chapter_stands_for_its_exercises():
    assert passes_without("3.2") == passes_without("3") and passes_without(MULTIPLY) == ()


@pytest.mark.parametrize("exercise", ["9.2", "10.1", "11.1", "2.1", "quick"])
def test_what_cannot_be_left_out_is_refused(exercise):
    with pytest.raises(
        ValueError, match=r"takes one of 3, 4, 6, 7, 9\.1, 9\.3, 9\.4, 11\.3, 11\.4"
    ):
        passes_without(exercise)


def test_a_table_of_what_answers_are_worth():
    seconds = {bench_answers.ALL: 0.002, "11.3": 0.06, MULTIPLY: 0.5}
    table = str(bench_answers.table_of({"seconds": seconds, "context": 100, "threads": 2}))
    assert "500" in table and "FuseDequantizeTake" in table


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(file, config, {exercise that is left out: the compiled ChatModel}) of a small model."""
    pytest.importorskip("gguf")
    from chapters.kit.chat.compiled import compile_decoder
    from chapters.kit.chat.gguf_file import read_gguf
    from chapters.kit.chat.run_decoder import ChatModel
    from chapters.kit.chat.weights import Weights, read_config
    from tests.kit.test_chat_model import LLAMAS, OWN_LANES

    path = tmp_path_factory.mktemp("model") / "model.gguf"
    file = read_gguf(LLAMAS["Q4_1, and Q8_0 shared"].save(path))
    config, models = read_config(file), {}
    weights = Weights(file, config, OWN_LANES)
    for without in ("", MULTIPLY):
        made = compile_decoder(weights, QUICK_HERE, partial(phases, without=without))
        models[without] = ChatModel(made, weights)
    return file, config, models


def test_one_weight_at_a_time_gives_the_same_logits(small):
    _, _, models = small
    found = [model.feed([3, 1, 4, 1, 5]) for model in models.values()]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4 * np.abs(found[0]).max())


@pytest.mark.skipif(not dot_products(QUICK_HERE), reason="products are floats on this processor")
def test_explain_names_whose_code_made_each_kernel(small):
    from chapters.ch11_a_real_model.explain import explain

    file, config, models = small
    table = explain(models[""], file, config, False, "", 3)
    by_name = {row[0]: row for row in table.rows}
    products = [row for name, row in by_name.items() if "dequantize_NT_matmul" in name]
    assert products and all(
        row[3:] == ("ScheduleQuantizedMatmuls", products[0][4]) for row in products
    )
    assert products[0][4] == "the reference's (11.3, 11.4)"
    assert by_name["fuse_add_norm_prefill"][4] == "the reference's (4)"
    assert any("attention" in name and row[4] == "given" for name, row in by_name.items())
    shares = [float(row[2].rstrip("%")) for row in table.rows]
    assert 99 < sum(shares) < 101

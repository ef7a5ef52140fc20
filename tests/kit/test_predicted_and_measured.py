"""The cost model beside measurements: which predictions belong to which times, and what is said of the ratios."""

from __future__ import annotations

import pytest

from chapters.ch08_gpu_targets import predicted_and_measured as both
from chapters.ch08_gpu_targets import predictions
from chapters.ch08_gpu_targets.bench import STEPS
from chapters.kit.bench.results import Shown, load
from chapters.kit.gpu.gpus import find_board
from docs.pages import gpu_results as page
from docs.pages.folded import Folded

ROWS = f"{STEPS.m} rows"


def predict(kernel: str, seconds: float | None, busiest: str = "shared memory", **more) -> dict:
    entry = {"kernel": kernel, "board": "H200", "seconds": seconds, "busiest": busiest}
    return {**entry, "roofline": 1e-4, "instructions": {"float32": 1}, **more}


def case(seconds: dict[str, float], **more) -> dict:
    times = {name: {"median": time, "low": time, "high": time} for name, time in seconds.items()}
    return {"dtype": "float16", "seconds": times, **more}


def measure(*cases: dict, gpu: str = "NVIDIA H200") -> dict:
    ceilings = {"copy_rate": 2.4e12, "matrix_rate": 494.7e12}  # half of an H200's rates
    return {"gpu": gpu, "measured": {"ceilings": ceilings, "cases": list(cases), "skipped": []}}


SIZES = {size: getattr(STEPS, size) for size in "mnk"}
ON_CORES = {"instructions": {"tensor core": 8}}
FILES = {
    "gpu_predictions": {
        "measured": {
            "predictions": [
                predict(f"{ROWS}: shared memory", 1.05),
                predict(f"{ROWS}: shared memory", 9.0, board="T4"),
                predict(f"{ROWS}: rows padded", 2.0),
                predict(f"{ROWS}: wgmma", 0.1, **ON_CORES),
                predict(f"{ROWS}: mma.sync", None, **ON_CORES),
                predict("1 row: decode", 0.09, "DRAM"),
                predict("add and RMSNorm 4096 × 4096: wide_kernel", 0.3, "DRAM"),
                predict("add and RMSNorm 8192 × 8192: wide_kernel", 0.3, "DRAM"),
            ]
        }
    },
    "ch08_steps": measure(
        case({"shared memory": 1.0, "rows padded": 1.6, "wgmma": 0.2, "mma.sync": 1.0}, **SIZES),
        case({"shared memory": 50.0}, **{**SIZES, "m": 1}),
    ),
    "ch08_norm": measure(
        case({"copy": 0.1, "wide_kernel": 0.4}, shape=[1, 4096, 4096]),
        {**case({"wide_kernel": 50.0}, shape=[1, 4096, 4096]), "dtype": "bfloat16"},
    ),
    "ch08_linear": measure(
        case({"copy": 0.08, "decode": 0.1}, **{**SIZES, "m": 1}),
        case({"decode": 50.0}, m=1, n=8, k=8),
    ),
}


def pairs(**changed: dict | None) -> list[both.Pair]:
    return both.find_pairs({**FILES, **changed}.get)


def test_each_prediction_finds_the_time_of_the_same_kernel_size_and_board():
    found = {pair.case: (pair.predicted, pair.measured) for pair in pairs()}
    assert found == {
        f"{ROWS}: shared memory": (1.05, 1.0),
        f"{ROWS}: rows padded": (2.0, 1.6),
        f"{ROWS}: wgmma": (0.1, 0.2),
        "1 row: decode": (0.09, 0.1),
        "add and RMSNorm 4096 × 4096: wide_kernel": (0.3, 0.4),  # float16, not bfloat16
    }


def test_another_board_or_a_missing_file_gives_no_pair():
    on_t4 = measure(*FILES["ch08_steps"]["measured"]["cases"], gpu="Tesla T4")
    (only,) = pairs(ch08_steps=on_t4, ch08_norm=None, ch08_linear=None)
    assert (only.board, only.ratio) == ("T4", 9.0)
    nameless = measure(*FILES["ch08_steps"]["measured"]["cases"], gpu="NVIDIA Unknown")
    assert pairs(ch08_steps=nameless, ch08_norm=None, ch08_linear=None) == []
    assert pairs(gpu_predictions=None) == []


def test_the_error_is_told_by_what_limits_a_kernel():
    assert both.describe_error(pairs()) == (
        "Predicted over measured time is 1.05 to 1.25 for matmuls without tensor cores, 0.50 for matmuls on tensor "
        "cores, 0.75 to 0.90 for kernels that memory limits."
    )
    told = both.describe_details(pairs())
    assert told.startswith("1 of 5 predictions are within 10% of the measured time.")
    assert f"“{ROWS}: wgmma”: 100 ms predicted, 200 ms measured." in told
    assert told.endswith("before: “rows padded”; measured to be slower: the same.")
    faster = case({"shared memory": 1.7, "rows padded": 1.6, "wgmma": 1.65}, **SIZES)
    told = both.describe_details(pairs(ch08_steps=measure(faster)))
    assert told.endswith("before: “rows padded”; measured to be slower: “wgmma”.")
    assert both.describe_rates(FILES.get) == (
        "The model believes the data sheet: of its rates a large copy reached 50%, and PyTorch's product of large "
        "matrices 50%."
    )
    assert both.describe_rates({}.get) == ""


def test_measured_times_stand_before_predicted_ones():
    table = both.pairs_table(pairs())
    assert table.header[1:4] == ("measured on one H200", "predicted", "predicted / measured")
    assert table.rows[2] == (f"{ROWS}: wgmma", "200 ms", "100 ms", "0.50", "100 µs")


def test_the_page_draws_the_ratios_and_folds_what_is_only_predicted(monkeypatch):
    files = {**FILES, predictions.NAME: load(predictions.NAME)}
    monkeypatch.setattr(page.tables, "load", files.get)
    found = pairs()
    monkeypatch.setattr(both, "find_pairs", lambda read: found)
    figure, folded = page.compared().parts
    assert (
        "1.05 to" in figure.claim and both.MODEL_DATE in figure.caption and "50%" in figure.caption
    )
    assert isinstance(folded, Folded) and "Nothing here was measured" not in str(folded)
    assert "step by step" not in str(folded)  # the first figure compares the steps
    monkeypatch.setattr(both, "find_pairs", lambda read: [])
    assert "step by step" in str(page.compared())


def test_a_lesson_shows_the_measured_steps_first(monkeypatch):
    made = Shown(None, "how it was made")
    monkeypatch.setattr(predictions.gpu_results, "source", lambda results: made)
    times = {"shared memory": 1.0, "wgmma": 0.2, predictions.gpu_results.LINEAR: 0.15}
    files = {**FILES, "ch08_steps": measure(case(times, **SIZES))}
    monkeypatch.setattr(predictions, "load", files.get)
    table, source = predictions.steps_shown().parts
    assert [row[:3] for row in table.rows] == [
        ("shared memory", "1 s", "1.05 s"),
        ("wgmma", "200 ms", "100 ms"),
        (predictions.gpu_results.LINEAR, "150 ms", "–"),
    ]
    assert source is made
    monkeypatch.setattr(
        predictions, "load", {**files, predictions.NAME: load(predictions.NAME)}.get
    )
    told = str(predictions.shown())
    assert told.startswith("Predicted over measured time is")
    assert told.count("how it was made") == 1 and "A prediction, not a measurement" in told


@pytest.mark.parametrize(
    ("driver", "board"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA H100 PCIe", None),
        ("", None),
    ],
)
def test_boards_by_the_name_that_the_driver_gives(driver, board):
    found = find_board(driver)
    assert (found and found.name) == board


def test_the_h200_has_the_same_predictions_as_the_h100_for_the_steps():
    """The page says so: these were made before any GPU had run the kernels."""
    entries = load(predictions.NAME)["measured"]["predictions"]
    times = {(e["kernel"], e["board"]): e["seconds"] for e in entries if e.get("seconds")}
    steps = [kernel for kernel, board in times if kernel.startswith(ROWS) and board == "H200"]
    assert len(steps) == 11
    for kernel in steps:
        assert times[kernel, "H200"] == times[kernel, "H100 SXM"]

"""--dtype=auto: the selected precision, and that a resumed run keeps it."""

from official_bert.optimization import distribution, precision
from official_bert.optimization.choices import DTYPES
from official_bert.optimization.precision import resolve_dtype, should_jit_compile
from tests.make import assert_rejected


def set_bfloat16_time(monkeypatch, seconds):
    """Sets the measured time of a product in bfloat16. It takes one second in float32."""
    monkeypatch.setattr(precision, "_time_products", lambda *_: {"float32": 1.0, "bfloat16": seconds})


def test_bfloat16_is_selected_if_it_is_clearly_faster_but_not_for_several_workers(tiny_config, monkeypatch):
    for dtype, earlier, seconds, expected in (
        ("auto", None, 0.79, "bfloat16"),
        ("auto", None, 0.9, "float32"),
        ("auto", "bfloat16", 2.0, "bfloat16"),
        ("float16", "bfloat16", 0.5, "float16"),
    ):
        set_bfloat16_time(monkeypatch, seconds)
        assert resolve_dtype(dtype, earlier, distribution.get_strategy("one_device"), tiny_config, 64) == expected
    monkeypatch.setattr(distribution, "is_multi_worker", lambda _: True)
    names = ("--dtype=auto", "--distribution_strategy=multi_worker")
    assert_rejected(names, resolve_dtype, "auto", None, None, tiny_config, 64)


def test_xla_does_not_compile_bfloat16_products_on_a_cpu(monkeypatch):
    monkeypatch.setattr(distribution, "compiles_parts", lambda _: True)
    assert [should_jit_compile(True, dtype, None) for dtype in DTYPES] == [True, False, True]
    assert not should_jit_compile(False, "float32", None)
    monkeypatch.setattr(distribution, "compiles_parts", lambda _: False)  # As if on a GPU.
    assert should_jit_compile(True, "bfloat16", None)


def test_both_precisions_are_timed(monkeypatch):
    monkeypatch.setattr(precision, "_SECONDS", 0.01)
    seconds = precision._time_products(64, 16, 64)
    assert set(seconds) == {"float32", "bfloat16"}
    assert min(seconds.values()) > 0


def test_pretraining_records_the_selected_precision_and_resumes_with_it(set_up_run, finished_run, monkeypatch):
    set_bfloat16_time(monkeypatch, 0.5)
    assert set_up_run(folder="other", dtype="auto").metadata["flags"]["dtype"] == "bfloat16"
    assert set_up_run(dtype="auto").metadata["flags"]["dtype"] == "float32"
    assert_rejected(("--dtype", "'float32'", "'bfloat16'"), set_up_run, dtype="bfloat16")

"""--dtype=auto: the selected precision, and that a resumed run keeps it."""

import pytest

from official_bert.errors import UserError
from official_bert.modeling.config import BertConfig
from official_bert.optimization import distribution, precision
from official_bert.optimization.precision import resolve_dtype, should_jit_compile
from official_bert.pretraining.run import pretrain
from official_bert.pretraining.run_metadata import read_run_metadata


def set_times(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    monkeypatch.setattr(precision, "_time_products", lambda *_: seconds)


def resolve(dtype: str, earlier: str | None, config: BertConfig, strategy: object = None) -> str:
    return resolve_dtype(dtype, earlier, strategy or distribution.get_strategy("one_device"), config, 64)


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.5, "bfloat16"), (0.79, "bfloat16"), (0.9, "float32"), (2.0, "float32")]
)
def test_bfloat16_is_selected_if_products_are_clearly_faster(
    tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: str
):
    set_times(monkeypatch, float32=1.0, bfloat16=seconds)
    assert resolve("auto", None, tiny_config) == expected


def test_only_auto_is_measured_and_only_once_in_a_run(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "_time_products", None)
    assert resolve("float16", "bfloat16", tiny_config) == "float16"
    assert resolve("auto", "bfloat16", tiny_config) == "bfloat16"


def test_workers_cannot_agree_on_a_measured_precision(tiny_config: BertConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(distribution, "is_multi_worker", lambda _: True)
    with pytest.raises(UserError, match="--dtype=auto.*multi_worker"):
        resolve("auto", None, tiny_config)


def test_xla_does_not_compile_bfloat16_products_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    strategy = distribution.get_strategy("one_device")
    monkeypatch.setattr(distribution, "compiles_parts", lambda _: True)
    assert [should_jit_compile(True, dtype, strategy) for dtype in ("float32", "bfloat16")] == [True, False]
    assert not should_jit_compile(False, "float32", strategy)
    monkeypatch.setattr(distribution, "compiles_parts", lambda _: False)  # As if on a GPU.
    assert should_jit_compile(True, "bfloat16", strategy)


def test_both_precisions_are_timed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "_SECONDS", 0.01)
    seconds = precision._time_products(64, 16, 64)
    assert set(seconds) == {"float32", "bfloat16"}
    assert min(seconds.values()) > 0


@pytest.mark.slow
def test_pretraining_writes_the_selected_precision_and_resumes_with_it(
    make_options, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    set_times(monkeypatch, float32=1.0, bfloat16=0.5)
    assert pretrain(make_options(tmp_path / "run", dtype="auto", num_train_steps=2)) == 0
    assert read_run_metadata(str(tmp_path / "run"))["flags"]["dtype"] == "bfloat16"
    set_times(monkeypatch, float32=1.0, bfloat16=2.0)
    assert pretrain(make_options(tmp_path / "run", dtype="auto", num_train_steps=2)) == 0
    assert read_run_metadata(str(tmp_path / "run"))["flags"]["dtype"] == "bfloat16"
    with pytest.raises(UserError, match="--dtype was 'bfloat16' and is 'float32'"):
        pretrain(make_options(tmp_path / "run", dtype="float32", num_train_steps=2))

import functools
from collections.abc import Callable

import pytest

from official_bert.export.options import SAVED_MODEL
from official_bert.kinds.names import ENCODER, FILL_MASK
from tests.export.exported_models import export, save_finetuned, save_run


@pytest.fixture(scope="session")
def export_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Returns the export of a kind in a format, which is made once and which no test changes."""

    @functools.cache
    def export_kind(kind: str, format_name: str = SAVED_MODEL) -> str:
        folder = tmp_path_factory.mktemp(f"{kind}-{format_name}")
        save = save_run(folder / "model") if kind in (ENCODER, FILL_MASK) else save_finetuned(folder / "model", kind)
        return export(save, folder / "exports", format_name, encoder=kind == ENCODER)

    return export_kind

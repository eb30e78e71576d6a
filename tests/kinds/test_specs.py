"""Specs work without TensorFlow and Keras."""

from official_bert.kinds.all_kinds import SPECS
from official_bert.kinds.multi_label.spec import MultiLabelSpec
from official_bert.kinds.question_answering.spec import QuestionAnsweringSpec
from official_bert.kinds.vectors.spec import VectorSpec
from tests.make import run_python
from tests.test_structure import NAMES, find_reachable, list_imports

FRAMEWORKS = {"tensorflow", "tensorflow_text", "keras"}
# None makes importing these modules an error.
IMPORT_AND_USE = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(FRAMEWORKS)}))
from official_bert.kinds.all_kinds import SPECS, create_spec
for kind, spec in SPECS.items():
    task = spec(labels=("a", "b")).task_spec("t", 16)
    assert create_spec(task).task_spec("t", 16) == task
    print(kind)
"""


def test_specs_are_used_where_tensorflow_and_keras_cannot_be_imported():
    done = run_python("-c", IMPORT_AND_USE)
    assert done.stdout.split() == list(SPECS), done.stderr
    modules = [name for name in find_reachable("official_bert.kinds.all_kinds") if ".kinds." in name]
    assert len(modules) > 15
    for name in modules:  # imports within functions, too
        assert not {module.split(".")[0] for module in list_imports(NAMES[name])} & FRAMEWORKS, name


def test_task_json_has_the_settings_that_predictions_depend_on():
    trained = MultiLabelSpec(labels=("a", "b"), positive_weights=(1.0, 2.0), thresholds=(0.5, 0.3))
    assert trained.settings == {"thresholds": [0.5, 0.3]}
    answers = {"max_query_length": 64, "max_answer_length": 30, "n_best_size": 20, "null_score_diff_threshold": 0.0}
    assert QuestionAnsweringSpec().settings == {"doc_stride": 128, "version_2": False, **answers}
    assert {"pooling", "layers", "normalize"} < VectorSpec().settings.keys()
    assert "graded" not in VectorSpec(graded=True).settings

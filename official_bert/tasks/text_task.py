"""Base class of tasks whose examples are texts or pairs of texts."""

from collections.abc import Sequence

from official_bert.kinds.features import Array
from official_bert.kinds.text_spec import TextExample, TextSpec
from official_bert.tasks.task import Task, write_table


class TextTask(Task):
    """A task whose examples are texts or pairs of texts."""

    spec: TextSpec

    def write_predictions(
        self, folder: str, split: str, predictions: Array, examples: Sequence[TextExample]
    ) -> list[str]:
        """Writes predictions_<split>.tsv and returns its path.

        The columns are id, prediction, expected label and the probability of each class. Numbers have seven significant
        digits. Predictions whose probability is below the model's min_confidence are empty.
        """
        spec = self.spec
        classes = spec.labels or ()
        columns = ["id", "prediction", "expected", *(f"probability of {name}" for name in classes)]
        rows = []
        for example, name, row in zip(examples, spec.prediction_names(predictions), predictions, strict=True):
            expected = "" if example.label is None else spec.format_label(example.label)
            probabilities = [f"{value:.7g}" for value in row] if classes else []
            rows.append([example.id, name, expected, *probabilities])
        return write_table(folder, split, columns, rows)

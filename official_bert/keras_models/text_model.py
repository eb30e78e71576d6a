"""TextModel: the base class of all Keras models that take text. It adds loading, saving, export and predict.

B batch size, S sequence length
"""

import os
from collections.abc import Mapping
from typing import Any, Self

from official_bert.checkpoints.checkpoint import LoadedModel, LoadOverrides
from official_bert.checkpoints.formats import finetuned, own
from official_bert.errors import UserError
from official_bert.export import formats
from official_bert.export.options import FLOAT32, SAVED_MODEL, ExportOptions
from official_bert.export.source import Source
from official_bert.finetuning.initial_model import read_initial_model
from official_bert.keras_models import data_errors, pretrained, saving
from official_bert.keras_models.data_sets import read_texts
from official_bert.keras_models.fit_arguments import check_count
from official_bert.keras_models.fitting_model import FittingModel
from official_bert.kinds.constant_answers import describe_constant_answers
from official_bert.kinds.input_adapters import are_ids
from official_bert.modeling.config import BertConfig


class TextModel(FittingModel):
    """A functional Keras model from token ids to logits whose fit, evaluate and predict also accept text.

    The subclass and its spec determine the form of the texts and labels, and what predict returns. The inputs of the
    network are input_ids, input_mask and segment_ids, int32 [B, S]. fit, evaluate and predict also accept a dict of
    these arrays.

    BaseTextModel describes the arguments of all classes.
    """

    # Loading, saving and export.

    @classmethod
    def from_checkpoint(
        cls,
        source: str | BertConfig,
        *,
        vocab_file: str | None = None,
        do_lower_case: bool | None = None,
        strip_accents: bool | None = None,
        **settings: Any,
    ) -> Self:
        """Creates a model with pre-trained weights. The head is new unless `source` is a fine-tuned model of this kind.

        Args:
            source: Path or name (such as bert-base-uncased) of a checkpoint in any format that `official_bert.load`
                reads, the folder of a fine-tuned model, or a .keras file of a model that accepts text. For random
                weights, a BertConfig or the path of a bert_config.json.
            vocab_file: Path of a vocab.txt, if `source` does not include one.
            do_lower_case: Whether the vocabulary is uncased, if `source` does not specify it.
            strip_accents: Whether to remove accents, if `source` does not specify it. Defaults to do_lower_case.
            settings: Other arguments of the class. A checkpoint with a head of this kind supplies the defaults of
                labels, multi_label and of the settings of its head. Arguments of all classes:

                - max_seq_length: Maximum number of tokens in a sequence. Longer texts are truncated or split into
                  windows. Defaults to the value of the fine-tuned model, otherwise to 128 (QuestionAnswerer: 384).
                - seed: Random seed for new weights, dropout and shuffling. Defaults to 0, whatever
                  keras.utils.set_random_seed was called with.
                - dtype: Keras dtype policy, such as "mixed_bfloat16". Defaults to Keras' global policy.
                - name: Name of the model.
                - trainable: Whether the weights are trainable. Defaults to True.
                - frozen: Names of the layers that are not trained.
                - quantization: "int8" for weights with 8 bits.
                - gradient_accumulation_steps: Number of micro-batches per step in fit. Defaults to 1.
                - rematerialize: Whether fit recomputes encoder blocks to save memory. Defaults to False.

                Arguments of one class and their defaults:

                - TextClassifier: labels=None, multi_label=False, pair=False, doc_stride=None, temperature=1.0,
                  thresholds=None, positive_weights=None, min_confidence=0.0.
                - TextRegressor: pair=False, doc_stride=None.
                - TokenTagger: labels=None, doc_stride=None.
                - QuestionAnswerer: no_answer=False, null_score_diff_threshold=0.0, doc_stride=128, max_query_length=64,
                  max_answer_length=30, n_best_size=20.
                - MaskedLM: masked_lm_prob=0.15, max_predictions_per_seq=20, do_whole_word_mask=False.
                - TextEncoder: pooling="mean", layers=(-1,), normalize=False, objective="ranking", dimensions=(),
                  score_range=(0.0, 1.0), scale=20.0, margin=5.0.

        Raises:
            UserError: If a file is missing or damaged, or an argument contradicts the checkpoint.
        """
        source = source if isinstance(source, BertConfig) else os.fspath(source)
        overrides = LoadOverrides(vocab_file=vocab_file, do_lower_case=do_lower_case, strip_accents=strip_accents)
        if isinstance(source, str) and source.endswith(".keras"):
            saved = saving.load(source, TextModel, "a model that takes text, as TextClassifier")
            initial = pretrained.to_loaded_model(saved, source, overrides)
        else:
            initial = read_initial_model(source, overrides)
        model: Self = pretrained.create_model(cls, initial, settings)
        return model

    def _take_decisions(self, task_spec: Mapping[str, Any], explicit: Mapping[str, Any]) -> None:
        """Copies settings that were chosen after training, such as thresholds, from a fine-tuned model.

        Args:
            task_spec: Contents of task.json.
            explicit: Arguments that the user passed. These settings are not replaced.
        """

    def _head_note(self, has_head: bool) -> str:
        return "the head is the checkpoint's" if has_head else "the head is new: train it before you predict"

    @classmethod
    def load(cls, path: str) -> Self:
        """Loads a model from a .keras file that `save` wrote.

        Raises:
            UserError: If the file does not exist, is damaged, or contains a model of another class.
        """
        model: Self = saving.load(path, cls, f"a {cls.__name__}")
        return model

    def _task_spec(self) -> dict[str, Any]:
        self._require_labels()
        return self.spec.task_spec(self.name if self.kinds else None, self.max_seq_length)

    def save(self, filepath: Any, overwrite: bool = True, zipped: bool | None = None, **settings: Any) -> None:
        """Writes the model like keras.Model.save, but atomically: an interrupted write leaves an existing file intact.

        Args:
            filepath: Path that ends in .keras, or in .h5 for Keras' legacy format.
            overwrite: Whether to replace an existing file. If False, an existing file is an error.
            zipped: Pass False to write a new folder instead of a .keras file.
            settings: Other arguments of keras.Model.save.

        Raises:
            UserError: If the file cannot be written, or exists and must not be replaced.
        """
        with saving.write_atomically(filepath, self, overwrite, is_folder=zipped is False) as temporary_path:
            super().save(temporary_path, zipped=zipped, **settings)

    def save_weights(self, filepath: Any, overwrite: bool = True, max_shard_size: float | None = None) -> None:
        """Writes the weights like keras.Model.save_weights, but atomically (see `save`)."""
        with saving.write_atomically(filepath, self, overwrite) as temporary_path:
            super().save_weights(temporary_path, max_shard_size=max_shard_size)

    def save_checkpoint(self, folder: str) -> None:
        """Writes the model to a folder that the commands, `official_bert.load` and `from_checkpoint` can read.

        The folder contains a fine-tuned model or, for MaskedLM, a checkpoint as pre-training writes it. A folder that
        this method wrote earlier is replaced.

        Raises:
            UserError: If the model is quantized, a weight is not finite, or the folder contains other files.
        """
        folder = os.fspath(folder)
        self._check_not_quantized()
        if self.kinds:
            finetuned.save(folder, self, self._task_spec(), self.bert_config, self.vocab, self.casing)
        else:
            own.save(LoadedModel(self.bert_config, self._weights(), self.vocab, self.casing), folder)

    def export(
        self,
        filepath: str,
        format: str = SAVED_MODEL,
        *,
        version: int | None = None,
        eval_file: str | None = None,
        quantization: str = FLOAT32,
        max_loss: float = 0.01,
        for_serving: str | None = None,
    ) -> None:
        """Writes the model for use without this package's Python classes, as `official-bert export` does.

        Args:
            filepath: Folder to write to.
            format: One or more of "saved_model" and "onnx", which take text, and "litert", which takes token ids,
                separated by commas.
            version: Version number for saved_model and onnx. Defaults to the next unused number.
            eval_file: File of labelled examples on which litert and 8-bit exports are scored.
            quantization: "float32", or "dynamic_int8" for 8-bit matrices in onnx and litert.
            max_loss: Maximum drop of the score on eval_file, as a fraction of the best possible score.
            for_serving: TensorFlow Serving release that must be able to load the saved_model, such as "2.19".

        Raises:
            UserError: If a format does not support the model or a setting, or an export answers differently from
                `predict`.
        """
        options = ExportOptions(
            model_dir=self.name,
            export_dir=os.fspath(filepath),
            format=format.split(","),
            version=version,
            eval_file=eval_file,
            quantization=quantization,
            max_loss=max_loss,
            for_serving=for_serving,
        )
        if options.format != [SAVED_MODEL]:
            self._check_not_quantized()
        source = Source(self, self.bert_config, self._tokenizer, self.vocab, self.spec.kind, self._task_spec())
        formats.write(source, options)

    # Answers.

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Returns predictions for texts, in the form that the class describes.

        For token ids, returns the network's outputs.

        Prints a warning if there are at least ten predictions and all are equal or nearly equal.

        Args:
            x: Texts, a tf.data.Dataset of texts, or a dict of token ids.
            batch_size: Number of texts per batch. Defaults to 32.
            verbose: Pass 0 to print nothing. Otherwise long input shows a progress bar.
            steps: See keras.Model.predict. For token ids only.
            callbacks: See keras.Model.predict. For token ids only.

        Raises:
            UserError: If texts have the wrong form, x is empty, or `steps` or `callbacks` is passed with texts.
        """
        batch_size = check_count(batch_size, "batch_size", 32)
        if are_ids(x):
            with data_errors.raise_one_line_errors():
                return super().predict(x, batch_size=batch_size, verbose=verbose, steps=steps, callbacks=callbacks)
        if steps is not None or callbacks is not None:
            raise UserError(
                "predict accepts steps and callbacks for token ids only, but x contains texts; remove these arguments"
            )
        return self._answer(read_texts(x, self.spec), batch_size, verbose)

    def _answer(self, x: Any, batch_size: int, verbose: Any) -> Any:
        """Returns what `predict` returns for texts."""
        examples = self.spec.examples(x, None)
        predictions = self._predictions(examples, batch_size, verbose)
        if verbose and (self.spec.discrete_outputs or self.spec.is_value):  # Vectors are not checked.
            warning = describe_constant_answers(self.spec.named_answers(predictions, examples))
            if warning:
                print(f"warning: {warning}")
        return self.spec.answers(predictions)

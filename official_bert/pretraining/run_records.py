"""The records that a run reads for each phase and for evaluation, and their packing."""

import functools

from official_bert.data.packing import Packing
from official_bert.modeling.config import BertConfig
from official_bert.pretraining.options import Phase, PretrainingOptions
from official_bert.pretraining.record_files import RecordFiles


class RunRecords:
    """The records of a run. Files are found and checked when they are first needed."""

    def __init__(self, options: PretrainingOptions, config: BertConfig, replicas: int) -> None:
        self._options, self._config, self._replicas = options, config, replicas
        self._by_phase: dict[int, RecordFiles] = {}
        self._packing: dict[int, Packing] = {}

    def training(self, phase: Phase) -> RecordFiles:
        """Returns the training records of a phase."""
        if phase.number not in self._by_phase:
            self._by_phase[phase.number] = self._find(f"{phase.prefix}input_file", phase)
        return self._by_phase[phase.number]

    def packing(self, phase: Phase) -> Packing | None:
        """Returns how the batches of a phase are packed, or None if --pack_sequences is not set."""
        options = self._options
        if options.pack_sequences and phase.number not in self._packing:
            records = self.training(phase)
            with records.explain_damage():
                self._packing[phase.number] = records.choose_packing(
                    phase.train_batch_size, options.random_seed, self._replicas, options.gradient_accumulation_steps
                )
        return self._packing.get(phase.number)

    def rows(self, phase: Phase) -> int:
        """Returns the number of rows that a step computes over all replicas. For packed batches, it is approximate."""
        packing = self.packing(phase)
        return packing.typical_rows if packing else phase.train_batch_size

    @functools.cached_property
    def held_out(self) -> RecordFiles | None:
        """The records to evaluate: --eval_input_file, or the first phase's if only --do_eval is set, or None."""
        first_phase = self._options.phases[0]
        if self._options.eval_input_file:
            return self._find("eval_input_file", first_phase)
        return self.training(first_phase) if self._options.do_eval else None

    @functools.cached_property
    def general(self) -> RecordFiles | None:
        """The records of general text, --general_eval_file, to evaluate. None if the flag is not set."""
        options = self._options
        return self._find("general_eval_file", options.phases[0]) if options.general_eval_file else None

    def _find(self, flag: str, phase: Phase) -> RecordFiles:
        return RecordFiles.find(flag, phase, self._options, self._config)

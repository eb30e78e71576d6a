"""What a run checks of its flags and files before anything else."""

from official_bert.config import BertConfig
from official_bert.errors import UserError
from official_bert.tokenization import check_special_tokens, load_vocab
from official_bert.training_options import Options


def check_vocabulary(vocab_file: str, config: BertConfig, config_file: str) -> None:
    vocab = load_vocab(vocab_file)
    check_special_tokens(vocab, vocab_file)
    pieces = max(vocab.values()) + 1
    if pieces > config.vocab_size:
        raise UserError(
            f"{vocab_file} has {pieces} tokens, but {config_file} has vocab_size {config.vocab_size}; they must belong "
            "together"
        )
    if pieces < config.vocab_size:
        print(
            f"note: {vocab_file} has {pieces} tokens, {config_file} has vocab_size {config.vocab_size}; the rest of "
            "the table is never used"
        )


def check_replicas(options: Options, replicas: int) -> None:
    on_tpu = options.strategy == "tpu"
    if options.num_tpu_cores is not None and on_tpu and options.num_tpu_cores != replicas:
        raise UserError(f"--num_tpu_cores is {options.num_tpu_cores}, but the TPU has {replicas}")
    if options.jit_compile and (replicas > 1 or on_tpu):
        raise UserError("--jit_compile is for one CPU or GPU; leave it out")
    if options.eval_batch_size % replicas:
        raise UserError(f"--eval_batch_size is {options.eval_batch_size}; expected a multiple of {replicas} replicas")
    parts = replicas * options.gradient_accumulation_steps
    for phase in options.phases:
        if phase.train_batch_size % parts:
            raise UserError(
                f"{phase.flag('train_batch_size')} is {phase.train_batch_size}; expected a multiple of the {replicas} "
                f"replicas times --gradient_accumulation_steps={options.gradient_accumulation_steps}, {parts}"
            )

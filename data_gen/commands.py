"""The commands that make and check data. A command imports its implementation after it has parsed its flags."""

import sys

from data_gen.options import InspectionOptions, ProseOptions, RecordOptions, VerificationOptions, VocabularyOptions
from official_bert.utils.command_line import Command
from official_bert.utils.dask_cluster import DaskOptions
from official_bert.utils.signals import print_if_stopped


def _make_records(options: RecordOptions, cluster: DaskOptions) -> None:
    from data_gen.pipelines import on_dask, one_machine, outputs, summary

    verb = "resume" if options.algorithm == "fast" else "start"
    with print_if_stopped(f"run the same command again to {verb}"):
        if cluster.dask:
            statistics = on_dask.create_pretraining_data(options, cluster.dask)
        else:
            statistics = one_machine.create_pretraining_data(options)
    print(summary.describe(statistics, options.dupe_factor))
    print(outputs.describe_outputs(options))


MAKE_RECORDS = Command(
    program="official-bert make-records",
    summary="Makes TFRecord files for pre-training from text files.",
    before="get text with one sentence per line, and a vocabulary (official-bert learn-vocabulary)",
    after="show the records: official-bert inspect-records; then official-bert pretrain",
    main=_make_records,
    extra="data",
    tensorflow=False,
    options=(RecordOptions, DaskOptions),
    original_script="data_gen/create_pretraining_data.py",
    examples=(
        "--input_file=text.txt --output_file=data/train.tfrecord --vocab_file=vocab.txt",
        (
            "--input_file='wiki/*.gz' --output_file=data/train.tfrecord --vocab_file=vocab.txt --num_shards=8 "
            "--do_whole_word_mask"
        ),
        (
            "--input_file='/shared/*.txt' --output_file=/shared/train.tfrecord --vocab_file=/shared/vocab.txt "
            "--num_shards=100 --dask=tcp://scheduler:8786"
        ),
    ),
)


def _learn_vocabulary(options: VocabularyOptions) -> None:
    from data_gen.vocabulary import learning

    learning.learn_and_report(options)


LEARN_VOCABULARY = Command(
    program="official-bert learn-vocabulary",
    summary="Learns a WordPiece vocabulary from text.",
    before="get text files, or create some with official-bert python-docs",
    after="official-bert make-records --vocab_file=vocab.txt",
    main=_learn_vocabulary,
    extra="data",
    tensorflow=False,
    options=(VocabularyOptions,),
    examples=(
        "--input_file=text.txt --vocab_file=vocab.txt",
        "--input_file='wiki/*.gz' --vocab_file=vocab.txt --vocab_size=50000 --nodo_lower_case --language=de",
    ),
)


def _inspect_records(options: InspectionOptions) -> None:
    from data_gen.inspection import overview

    overview.inspect(options)


INSPECT_RECORDS = Command(
    program="official-bert inspect-records",
    summary="Shows the records of TFRecord files as text, with statistics.",
    before="create records with official-bert make-records",
    after="check all records: official-bert verify-records; then official-bert pretrain",
    main=_inspect_records,
    extra="data",
    options=(InspectionOptions,),
    examples=(
        "--input_file=data/train.tfrecord --vocab_file=vocab.txt",
        "--input_file='data/*.tfrecord' --vocab_file=vocab.txt --num_records=20 --report=records.html",
    ),
)


def _verify_records(options: VerificationOptions) -> int:
    from data_gen.inspection import verification

    findings = verification.verify(options)
    for note in findings.notes:
        print(f"note: {note}")
    for checked in [] if findings.problems else findings.checked:
        print(f"checked: {checked}")
    for problem in findings.problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"files {findings.files}, records read {findings.records:,}, errors {len(findings.problems)}")
    return 1 if findings.problems else 0


VERIFY_RECORDS = Command(
    program="official-bert verify-records",
    summary="Checks every byte of TFRecord files.",
    before="create records with official-bert make-records",
    after="official-bert pretrain with the same files",
    main=_verify_records,
    extra="data",
    options=(VerificationOptions,),
    examples=(
        "--manifest=data/train.manifest.json --vocab_file=vocab.txt",
        "--input_file='data/*.tfrecord' --bert_config_file=configs/models/uncased_L-2_H-128_A-2.json",
    ),
)


def _write_python_docs(options: ProseOptions) -> None:
    from data_gen.text import python_prose

    python_prose.write(options)


PYTHON_DOCS = Command(
    program="official-bert python-docs",
    summary="Writes English text from the documentation in the Python installation.",
    before="no preparation: every Python installation contains this text",
    after="official-bert learn-vocabulary --input_file=text.txt --vocab_file=vocab.txt",
    main=_write_python_docs,
    extra="data",
    options=(ProseOptions,),
    examples=(
        "--output_file=text.txt --heldout_file=heldout.txt",
        "--output_file=data/text.txt --heldout_file=data/heldout.txt",
    ),
    tensorflow=False,
)

"""The command adapt. What it calls is imported when it runs, after its flags were read."""

from adaptation.options import Options
from official_bert.utils.allocator import tune_allocator
from official_bert.utils.command_line import Command


def _adapt(options: Options) -> int:
    tune_allocator()
    from adaptation import adapting

    code = adapting.run(options)
    if code == 0:
        print(f"the adapted model is in {options.output_dir}")
    return code


ADAPT = Command(
    program="official-bert adapt",
    summary="Trains a model further on text of one's own, with words of that text if wanted.",
    before="weights (official-bert models lists some); text files, empty lines between documents",
    after="official-bert fill-mask --model_dir=adapted, or official-bert finetune --init=adapted",
    main=_adapt,
    extra="data",
    options=(Options,),
    examples=(
        "--init=google://uncased_L-4_H-256_A-4 --input_file='tickets/*.txt' --output_dir=adapted",
        "--init=bert-base-uncased --input_file=law.txt --general_file='wiki/*' --new_words=500 --output_dir=adapted",
    ),
)

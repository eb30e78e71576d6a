"""The command plan. What it calls is imported when it runs, after its flags were read."""

from official_bert.utils.allocator import tune_allocator
from official_bert.utils.command_line import Command
from planning.options import Options


def _plan(options: Options) -> int:
    tune_allocator()
    from planning import planning

    return planning.run(options)


PLAN = Command(
    program="official-bert plan",
    summary="Plans pre-training for the minutes there are: what to train, by which commands, what loss to expect.",
    before="text files, empty lines between documents",
    after="give the commands that it prints, or plan again with --run",
    main=_plan,
    extra="data",
    options=(Options,),
    examples=(
        "--input_file='text/*.txt' --minutes=60",
        "--input_file='text/*.txt' --hours=8 --output_dir=night --run",
    ),
)

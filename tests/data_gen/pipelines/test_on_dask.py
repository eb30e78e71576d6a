"""Records on a Dask cluster are those of one machine, whatever happens to workers and scheduler."""

import pathlib
import random
import subprocess
import sys

import pytest

from data_gen.options import RecordOptions
from data_gen.pipelines import on_dask
from official_bert.errors import UserError
from tests.conftest import WORDS
from tests.dask_clusters import ENVIRONMENT, dask_cluster, ended, wait_until

pytestmark = pytest.mark.slow

FLAGS = [
    "--input_file=text*.txt", "--vocab_file=vocab.txt", "--dupe_factor=12", "--max_seq_length=32", "--num_shards=5",
    "--max_predictions_per_seq=5", "--block_tokens=4000",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Text, vocabulary, and the records of one machine in `one`."""
    words, rng = [word for word in WORDS if word.isalpha()], random.Random(1)
    for number in range(3):
        documents = [
            "".join(" ".join(rng.choices(words, k=rng.randint(3, 20))) + " .\n" for _ in range(rng.randint(2, 12)))
            for _ in range(300)
        ]
        (tmp_path / f"text{number}.txt").write_text("\n".join(documents))
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    command = [sys.executable, "-m", "official_bert_cli", "make-records", "--output_file=one/all.tfrecord", *FLAGS]
    subprocess.run(command, check=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True)
    return tmp_path


def contents(folder: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def blocks_of(folder: pathlib.Path) -> int:
    return len(list(folder.glob("many/all.work/*/spooled-*")))


@pytest.mark.parametrize("namespaces", [False, True], ids=["loopback", "network namespaces"])
def test_a_worker_lost_and_one_added_give_the_bytes_of_one_machine(folder: pathlib.Path, namespaces: bool):
    with dask_cluster(folder, 3, namespaces) as cluster:
        command = cluster.command("make-records-beam", "--output_file=many/all.tfrecord", *FLAGS)
        wait_until(lambda: blocks_of(folder) > 5, "some blocks are made")
        cluster.one_worker_lost_one_added(lambda: blocks_of(folder))
        assert not (folder / "many" / "all.manifest.json").exists()
        code, out, errors = ended(command)
    assert (code, errors) == (0, []), "\n".join([out, *errors])
    assert contents(folder / "many") == contents(folder / "one")


def test_of_a_lost_scheduler_the_command_says_so_and_goes_on_when_it_is_given_again(folder: pathlib.Path):
    with dask_cluster(folder, 3) as cluster:
        command = cluster.command("make-records-beam", "--output_file=many/all.tfrecord", *FLAGS)
        wait_until(lambda: blocks_of(folder) > 5, "some blocks are made")
        cluster.scheduler.kill()
        code, _, errors = ended(command)
        assert code == 1
        (error,) = errors
        assert f"the scheduler at {cluster.address} is gone" in error
        assert error.endswith("what is done is kept: run the same command again to go on")
        assert blocks_of(folder) > 5
        for worker in cluster.workers:
            worker.kill()
        cluster.start_scheduler()
        cluster.add_worker()
        code, out, errors = ended(cluster.command("make-records-beam", "--output_file=many/all.tfrecord", *FLAGS))
    assert (code, errors) == (0, [])
    assert "going on with the unfinished work" in out
    assert contents(folder / "many") == contents(folder / "one")


def test_an_error_of_the_text_is_one_line_and_leaves_nothing(folder: pathlib.Path):
    (folder / "text1.txt").write_bytes(b"the cat .\n\xff sat .\n")
    with dask_cluster(folder, 1) as cluster:
        code, _, errors = ended(cluster.command("make-records-beam", "--output_file=many/all.tfrecord", *FLAGS))
    assert code == 1
    (error,) = errors
    assert "text1.txt, line 2: " in error
    assert not list((folder / "many").iterdir())


def test_a_folder_that_a_worker_does_not_reach_is_named(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=f"does not reach {tmp_path}/there; give --output_file in a folder that all"):
        on_dask._do(str(tmp_path / "there"), "run", {"file": [0]})


def test_flags_of_one_machine_are_refused():
    options = RecordOptions(input_file=["text"], output_file=["records"], vocab_file="vocab", num_workers=77)
    with pytest.raises(UserError, match="--num_workers is for one machine; .* of Dask, start as many"):
        on_dask.create_pretraining_data(options, "tcp://127.0.0.1:1")

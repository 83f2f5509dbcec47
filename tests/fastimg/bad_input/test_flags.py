"""Flags and outputs that cannot be: refused before anything is written."""

import pytest

from fastimg.models.ranks import Ranks, start
from fastimg.train import loop as training


def test_an_existing_destination(trained, folder, shards, refuses):
    refuses(2, [shards, "already holds a dataset", "--overwrite"], "convert", folder, shards)


def test_more_ranks_than_samples(folder, commands, refuses, monkeypatch):
    class Alone(Ranks):
        """One of a hundred ranks, which waits for nobody."""

        def barrier(self):
            pass

        def broadcast(self, value):
            return value

        def gather(self, value):
            return [value] * self.world_size

    def many(device, numa_binding):
        class Context:
            def __enter__(self):
                with start(device, numa_binding) as ranks:
                    return Alone(0, 100, 1, ranks.device, None)

            def __exit__(self, *error):
                pass

        return Context()

    monkeypatch.setattr(training, "start", many)
    refuses(1, [folder, "24 samples for 100 ranks", "start fewer"], *commands["train"](folder))


def test_an_output_that_is_a_file(trained, tmp_path, fast, refuses):
    (tmp_path / "file").write_text("")
    texts = [tmp_path / "file", "--output"]
    refuses(1, texts, "train", trained.images, *fast, "-o", tmp_path / "file")


def test_a_learning_rate_that_explodes(trained, tmp_path, fast, refuses):
    texts = ["the loss became nan", "lower --lr"]
    refuses(1, texts, "train", trained.images, *fast, "--lr", "1e30", "--opt", "sgd", "-o", tmp_path / "runs")


@pytest.mark.parametrize("flags", [("--batch-size", "0"), ("--workers", "0"), ("--device", "tpu")])
@pytest.mark.parametrize("command", ["eval", "predict"])
def test_flags_of_eval_and_predict(command, flags, trained, commands, refuses):
    data = trained.images if command == "eval" else trained.images / "val" / "red" / "0.jpg"
    refuses(2, [flags[0]], *commands[command](data), *flags)


def test_a_missing_split(trained, commands, refuses):
    refuses(
        1,
        [trained.images, "no split 'tset'", "it has train, val"],
        *commands["eval"](trained.images),
        "--split",
        "tset",
    )
    refuses(1, ["no split 'tset'"], *commands["train"](trained.images), "--train-split", "tset")
    refuses(1, ["no split 'tset'"], *commands["train"](trained.images), "--val-split", "tset")


def test_a_plot_that_cannot_be_written(trained, tmp_path, refuses):
    refuses(2, ["--output", "a.xyz", ".png"], "eval", trained.run, trained.images, "--output", tmp_path / "a.xyz")
    refuses(1, ["--output", "no/a.png"], "eval", trained.run, trained.images, "--output", tmp_path / "no" / "a.png")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--max-pixels", "99999999999999999999"),
        ("--workers", "99999999999999999999"),
        ("--seed", "-99999999999999999999"),
        ("--batch-size", 5000 * "9"),
        ("--lr", "1e40"),
        ("--scale", "1e300"),
    ],
)
def test_numbers_that_nothing_holds(flag, value, folder, commands, refuses):
    values = [value, value] if flag == "--scale" else [value]
    refuses(2, [flag], *commands["train"](folder), flag, *values)

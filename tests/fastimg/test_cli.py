"""The command line: help, exit codes, and text that is printed unchanged."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastimg import __version__
from fastimg import cli as command_line
from fastimg.config import benchmarking as benchconfig
from fastimg.config import commands as config
from fastimg.config import flags, searching
from fastimg.config.command_line import sections
from fastimg.config.flag_types import command_flags, flag_names

COMMANDS = {
    "demo": config.Demo,
    "convert": config.Convert,
    "inspect": config.Inspect,
    "suggest": searching.Suggest,
    "train": config.Train,
    "verify": config.Verify,
    "eval": config.Eval,
    "embed": config.Embed,
    "predict": config.Predict,
    "export": config.Export,
    "push": config.Push,
    "search": searching.Search,
    "bench": benchconfig.Bench,
    "doctor": benchconfig.Doctor,
    "recipe": config.Recipe,
    "cluster": config.Cluster,
}
IN_YAML = {"augmentation", "kornia", "shared"}
POSITIONAL = {"folder", "src", "dst", "more", "data", "checkpoint", "sources", "action"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_flag(command, cli):
    ran = cli(command, "--help-all")
    assert (ran.code, ran.err) == (0, "")
    words = set(ran.out.replace(",", " ").split())
    fields = [field.name for field in dataclasses.fields(COMMANDS[command])]
    positional = POSITIONAL | IN_YAML if command != "demo" else set()
    positional |= {"name"} if command == "recipe" else set()
    assert not [name for name in fields if name not in positional and f"--{name.replace('_', '-')}" not in words]


def test_help_fits_the_terminal(cli, monkeypatch):
    """Descriptions wrap at the terminal's width, not where the source's lines do."""
    text = "without an improvement. Those before the end of --freeze-epochs, or before the crops of --progressive"
    for columns, whole in ((80, False), (140, False), (200, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        out = cli("train", "--help-all").out
        assert max(len(line) for line in out.splitlines()) <= columns
        assert (text in out) == whole and text in " ".join(out.split())


def _ends(text):
    """The ends of sentences, and of fragments that are written like sentences."""
    return re.findall(r"(?<!\.)[.!?](?=\s|$)", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_flag_is_described_in_one_or_two_sentences(command):
    """The default comes last, in brackets, as the parser adds those that are values."""
    known = {flag.field: flag for flag in command_flags(COMMANDS[command])}
    texts = {name: text for name, text in flags.descriptions(COMMANDS[command]).items() if name in known}
    assert set(texts) == set(known)
    assert [name for name, text in texts.items() if not text.endswith(".") or len(_ends(text)) > 2] == []
    assert [name for name, text in texts.items() if len(text.split()) > 50] == []
    assert [name for name, text in texts.items() if "default: " in text.lower().partition(" (default: ")[0]] == []
    assert [
        name
        for name, text in texts.items()
        if "(default: " in text and (not text.endswith(").") or known[name].default not in (None, False, (), Path()))
    ] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_description_names_flags_that_the_command_or_train_has(command):
    ours = flag_names(command_flags(COMMANDS[command])) | flag_names(command_flags(COMMANDS["train"]))
    for name, text in flags.descriptions(COMMANDS[command]).items():
        elsewhere = re.findall(r"`fastimg (\w+)[^`]*`", text)
        there = ours.union(*(flag_names(command_flags(COMMANDS[other])) for other in elsewhere))
        assert not (set(re.findall(r"--[a-z][a-z-]+", text)) - there), name


@pytest.mark.parametrize("command", sections.SECTIONS)
def test_every_flag_has_one_section(command):
    fields = [field for fields in sections.SECTIONS[command].values() for field in fields]
    flagged = [flag.field for flag in command_flags(COMMANDS[command]) if flag.names]
    assert sorted(fields) == sorted(flagged)
    assert sections.FIRST[command] <= set(fields)


@pytest.mark.parametrize("command", sections.FIRST)
def test_help_begins_with_the_most_important_flags(command, cli):
    short, whole = cli(command, "--help").out, cli(command, "--help-all").out
    assert len(short.splitlines()) < len(whole.splitlines())
    first, all_ = (set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) for text in (short, whole))
    assert {f"--{field.replace('_', '-')}" for field in sections.FIRST[command]} <= first
    assert f"These are {len(sections.FIRST[command])} of " in short and "These are" not in whole
    assert len(first) < len(all_)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_in_the_help_are_commands(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for line, _ in sections.EXAMPLES.get(command, ()):
        words = line.split()
        if words[0] == "fastimg":
            assert words[1] == command and len(line) < 78
            command_line._parse(command, words[2:])


def test_defaults_that_are_numbers_are_shown(cli):
    out = cli("train", "--help-all").out
    for flag, shown in (("--smoothing", "0.1"), ("--seed", "0"), ("--grad-accum-steps", "1"), ("--amp,", "on")):
        at = out.index(f"  {flag}")
        assert f"(default: {shown})" in out[at : out.index("\n  -", at + 1)]
    assert "default: None" not in out and "default: False" not in out


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete -"), ("zsh", "#compdef fastimg"), ("fish", "complete")])
def test_completion(shell, word, cli):
    ran = cli("--print-completion", shell)
    assert (ran.code, ran.err) == (0, "") and word in ran.out
    for name in ("train", "convert", "label-smoothing", "reencode"):
        assert name in ran.out
    assert cli(f"--print-completion={shell}").out == ran.out


def test_completion_in_bash():
    """Bash's completions for the beginning of a word."""
    script = subprocess.run(
        [sys.executable, "-m", "fastimg", "--print-completion", "bash"], capture_output=True, text=True, check=True
    ).stdout
    ask = (
        "COMP_WORDS=(fastimg train --label-sm); COMP_CWORD=2; COMP_LINE='fastimg train --label-sm'; "
        "_shtab_fastimg fastimg --label-sm train; echo ${COMPREPLY[@]}"
    )
    ran = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True)
    assert ran.stdout.split() == ["--label-smoothing"], ran.stderr


def test_completion_for_an_unknown_shell(cli):
    ran = cli("--print-completion", "fsh")
    assert ran.code == 2 and "give bash, zsh, fish; did you mean" in ran.err


def test_every_command_is_listed(cli):
    ran = cli("--help")
    assert ran.code == 0
    assert all(f"  {name} " in ran.out for name in COMMANDS)
    assert command_line._COMMANDS == COMMANDS


def test_no_arguments_print_help_with_a_usage_error(cli):
    ran = cli()
    assert ran.code == 2 and "commands:" in ran.out
    assert "start here:" in ran.out and ran.out.index("fastimg demo") < ran.out.index("commands:")


def test_help_does_not_import_torch():
    code = "import sys; from fastimg.cli import run; print(run(['train', '--help']), 'torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "0 False"


def test_help_is_a_command_too(cli):
    assert cli("help").out == cli("--help").out
    assert cli("help", "verify").out == cli("verify", "--help").out
    assert cli("help", "trian").code == 2


def test_names_that_flags_had_before_still_work():
    parse = command_line._parse
    found = parse("search", ["D", "--time", "5m", "--sampler", "grid"])
    assert (found.max_time, found.algorithm) == ("5m", "grid")
    assert parse("train", ["D", "--time", "5m"]).max_time == parse("suggest", ["D", "--time", "5m"]).max_time == "5m"
    assert parse("eval", ["R", "D", "--plot", "a.png"]).output == parse("bench", ["D", "--plot", "a.png"]).output
    assert parse("bench", ["D", "--threads", "1,2"]).workers_curve == "1,2"


def test_a_file_that_exists_is_replaced_only_on_demand(trained, cli, tmp_path):
    photo = trained.images / "val" / "red" / "0.jpg"
    for command, flag in (
        (("predict", trained.run, photo), "--csv"),
        (("predict", trained.run, photo), "--sheet"),
        (("eval", trained.run, trained.images), "--output"),
        (("bench", trained.shards, "--loaders", "native"), "--output"),
        (("suggest", trained.images), "--output"),
        (("export", trained.run), "--output"),
    ):
        name = {"suggest": "a.yaml", "export": "a.safetensors"}.get(command[0], "a.png")
        (tmp_path / name).write_text("mine")
        ran = cli(*command, flag, tmp_path / name)
        assert ran.code == 2 and "exists already; add --overwrite" in ran.err, ran.err
        assert (tmp_path / name).read_text() == "mine"
    ran = cli("eval", trained.run, trained.images, "--overwrite")
    assert ran.code == 2 and "--overwrite has no effect without --output" in ran.err


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag, cli):
    assert cli(flag).out == f"fastimg {__version__}\n"


@pytest.mark.parametrize(("word", "hint"), [("trian", "; did you mean train?"), ("xyz", "'xyz'; `fastimg --help`")])
def test_unknown_command(word, hint, cli):
    ran = cli(word)
    assert ran.code == 2 and word in ran.err and hint in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["convert", "train", "eval", "predict", "inspect", "demo"])
def test_unknown_flag(command, cli):
    ran = cli(command, *([] if command == "demo" else ["a", "b"]), "--no-such-flag", "1")
    assert ran.code == 2 and "--no-such-flag" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_the_known_flags_are_those_of_the_help(command, cli):
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", cli(command, "--help-all").out))
    known = flags.flags_of(COMMANDS[command])
    hidden = {name for flag in command_flags(COMMANDS[command]) for name in flag.mark.hidden}
    assert known - words == hidden and not hidden & words
    assert {word for word in words - known if word.startswith("--")} <= {
        "--config",
        "--recipe",
        "--tune",
        "--profile",
        "--nproc-per-node",
        "--field",
        "--text-column",
        "--fold",
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train x --learning-rate 1", "train has no flag --learning-rate; did you mean --lr?"),
        ("train x --learning_rate=1", "train has no flag --learning_rate; did you mean --lr?"),
        ("train x --bs 8", "--bs; did you mean --batch-size?"),
        ("train x -bs 8", "-bs; did you mean --batch-size?"),
        ("train x -lr 1", "-lr; did you mean --lr?"),
        ("train x --image-size 64", "--image-size; did you mean --img-size?"),
        ("train x --batch 8", "--batch; did you mean --batch-size?"),
        ("train x --num-workers 2", "without --backend ray, where it is the number of ranks (threads are --workers)"),
        ("train x --num-train-epochs 2", "--num-train-epochs; did you mean --epochs?"),
        ("train x --max_epochs 2", "--max_epochs; did you mean --epochs?"),
        ("train x --optimizer sgd", "--optimizer; did you mean --opt?"),
        ("train x --lr-warmup-epochs 2", "--lr-warmup-epochs; did you mean --warmup-epochs?"),
        ("train x --accumulate-grad-batches 2", "did you mean --grad-accum-steps?"),
        ("train x --max-grad-norm 2", "did you mean --clip-grad?"),
        ("train x --weigth-decay 1", "--weigth-decay; did you mean --weight-decay?"),
        ("train x --epoch 1", "--epoch; did you mean --epochs?"),
        ("eval a b --per-device-eval-batch-size 1", "did you mean --batch-size?"),
        ("embed a b --image-size 1", "did you mean --img-size?"),
        ("predict a b --top-k 1", "did you mean --topk?"),
        ("predict a b --num-workers 1", "--num-workers; write --workers"),
        ("train x --wandb", "train has no flag --wandb; write --log wandb"),
        ("train x --cache ram", "--cache; write --resident, which keeps decoded images in memory"),
        ("train x --dropout 0.1", "--dropout; write --model-kwargs drop_rate=VALUE"),
        ("train x --trivialaugment", "--trivialaugment; write --aa trivial"),
        ("inspect x --ta_wide", "--ta_wide; write --aa trivial"),
        ("train x --fraction 0.1", "--fraction; write --val-fraction 0.9, say, which trains on a tenth"),
        ("train x --test-only", "--test-only; write `fastimg eval RUN DATA`"),
        ("train x --aa TrivialAugmentWide", "--aa TrivialAugmentWide: unknown policy; write trivial"),
        ("train x --device 0", "--device 0: write cuda:0"),
        ("search x --max-time 1m --device gpu", "--device gpu: write cuda"),
        ("predict a b --device 0,1", "--device 0,1: a process uses one GPU; start one for each"),
        ("train --data x", "give the data without a flag: `fastimg train DATA`"),
        ("predict a b --epochs 3", "predict has no flag --epochs, which belongs to demo and train"),
        ("train x --no-such-flag", "train has no flag --no-such-flag; `fastimg train --help` lists its flags"),
    ],
)
def test_suggestions_for_unknown_flags(arguments, words, cli):
    ran = cli(*arguments.split())
    assert ran.code == 2 and words in ran.err and ran.err.count("\n") == 1, ran.err


def test_names_of_other_tools_map_to_existing_flags():
    names = {flag.removeprefix("--") for kind in COMMANDS.values() for flag in flags.flags_of(kind)}
    assert set(flags._ELSEWHERE) <= names
    theirs = [name for names in flags._ELSEWHERE.values() for name in names]
    assert len(theirs) == len(set(theirs)) and not {f"--{name}" for name in theirs} & flags.flags_of(config.Train)
    instead = [what.split()[0].rstrip(",").removeprefix("--") for what in flags._INSTEAD if not what.startswith("`")]
    assert set(instead) <= names
    others = [name for names in flags._INSTEAD.values() for name in names]
    assert len(others) == len(set(others)) and not set(others) & set(theirs)


@pytest.mark.parametrize(
    "arguments", ["data -b8 -j2 -oruns", "data --batch_size 8 -j 2 --output runs", "data -b=8 -j=2"]
)
def test_spellings_of_flags(arguments):
    parsed = command_line._parse("train", arguments.split())
    assert (parsed.batch_size, parsed.workers, str(parsed.output)) == (8, "2", "runs")


@pytest.mark.parametrize(
    ("arguments", "compiled", "resume"),
    [
        ("data", None, None),
        ("data --compile", "default", None),
        ("--compile --no-amp data", "default", None),
        ("data --compile reduce-overhead", "reduce-overhead", None),
        ("--compile max-autotune data", "max-autotune", None),
        ("--compile=max-autotune-no-cudagraphs data", "max-autotune-no-cudagraphs", None),
        ("data --resume --compile", "default", "last"),
        ("data --resume some/run", None, "some/run"),
        ("data --resume=auto", None, "auto"),
    ],
)
def test_flags_with_an_optional_value(arguments, compiled, resume):
    parsed = command_line._parse("train", arguments.split())
    assert (parsed.compile, parsed.resume, str(parsed.data)) == (compiled, resume, "data")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("my/data", "where DATA follows, write --compile=default"), ("max-autotun", "did you mean max-autotune")],
)
def test_an_unknown_compile_mode(word, hint, cli):
    ran = cli("train", "--compile", word)
    assert ran.code == 2 and f"--compile {word}: give default, reduce-overhead" in ran.err and hint in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --head-init ones", "--head-init ones: give one of xavier, he, zeros"),
        ("train --sched=step2", "--sched step2: give one of cosine, linear, step, constant; did you mean step?"),
        ("convert a b --jpeg None", "--jpeg None: give one of keep, reencode"),
        ("eval a b --loader dalli", "did you mean dali?"),
    ],
)
def test_a_choice_that_is_not_there(arguments, message, cli):
    """None, which stands for an omitted flag, is not offered."""
    ran = cli(*arguments.split())
    assert ran.code == 2 and message in ran.err and ran.err.count("\n") == 1


@pytest.mark.parametrize("flags", [("--epochs", "many"), ("--sched", "poly"), ("--scale", "0.5")])
def test_values_of_the_wrong_kind(flags, cli):
    ran = cli("train", "nowhere", *flags)
    assert ran.code == 2 and flags[0] in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train x --epochs many", "--epochs many: give a whole number"),
        ("train x --epochs", "--epochs: expected one argument"),
        ("train x --scale 0.5", "--scale: expected 2 arguments"),
        ("train x --batch-size many", "--batch-size many: give a whole number or auto"),
        ("train x y", "train: unexpected argument 'y'"),
        ("train x imgsz=64", "train: unexpected argument 'imgsz=64'; did you mean --imgsz 64?"),
        ("train x amp=False", "train: unexpected argument 'amp=False'; did you mean --no-amp?"),
        ("train x pretrained=True", "did you mean --pretrained?"),
        ("train x batch=16 epochs=3", "train: unexpected argument 'batch=16'; did you mean --batch-size 16?"),
        ("convert x", "convert: DST is missing; write `fastimg convert SRC DST"),
        ("recipe", "recipe: ACTION is missing"),
        ("recipe lst", "give one of list, show; did you mean list?"),
        ("train x -x5", "unrecognized arguments: -x5"),
    ],
)
def test_missing_or_wrong_values(arguments, message, cli):
    ran = cli(*arguments.split())
    assert ran.code == 2 and message in ran.err and ran.err.count("\n") == 1, ran.err


def test_negative_numbers_are_values():
    parsed = command_line._parse("train", ["x", "--lr", "-1e-3", "--rotate", "-5", "--brightness", "-1", "1"])
    assert (parsed.lr, parsed.rotate, parsed.brightness) == (-1e-3, -5.0, (-1.0, 1.0))


@pytest.mark.parametrize(
    ("arguments", "tta", "data"),
    [
        ("--tta", "mirror", None),
        ("--tta x", "mirror", "x"),  # what follows is DATA unless it is one of the words
        ("x --tta --epochs 3", "mirror", "x"),
        ("--tta mirror-shift x", "mirror-shift", "x"),
        ("x --tta=mirror", "mirror", "x"),
        ("x --tta mirror-shift --no-tta", False, "x"),
        ("x", False, "x"),
    ],
)
def test_a_flag_that_is_off_or_one_of_several_words(arguments, tta, data):
    parsed = command_line._parse("train", arguments.split())
    assert (parsed.tta, parsed.data) == (tta, data and Path(data))


def test_a_wrong_word_of_a_flag_that_may_be_off(cli):
    ran = cli("train", "x", "--tta=mirror-shifts")
    assert ran.code == 2
    assert "--tta mirror-shifts: give one of mirror, mirror-shift; did you mean mirror-shift or mirror?" in ran.err


def test_an_internal_error_keeps_its_traceback(cli, monkeypatch):
    def broken(arguments, console):
        raise KeyError("something of ours")

    monkeypatch.setattr(command_line, "_dispatch", broken)
    ran = cli("train")
    assert ran.code == 1 and "Traceback" in ran.err and "report it" in ran.err


def test_ctrl_c_before_training(cli, monkeypatch):
    def interrupted(arguments, console):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_dispatch", interrupted)
    ran = cli("train")
    assert (ran.code, ran.err) == (130, "fastimg: interrupted\n")


def test_messages_of_ranks_name_the_rank(cli, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert cli("xyz").err.startswith("fastimg: rank 3: error: ")


@pytest.fixture
def odd(trained, tmp_path, monkeypatch):
    """A data folder, classes and files whose names look like markup, in the current directory."""
    root = tmp_path / "[/bold] a&b"
    for split in ("train", "val"):
        for old, new in (("blue", "[red]x"), ("green", "[bold]"), ("red", "two words")):
            shutil.copytree(trained.images / split / old, root / split / new)
        (root / split / "two words" / "0.jpg").rename(root / split / "two words" / "[bold]x.jpg")
    monkeypatch.chdir(tmp_path)
    return root.relative_to(tmp_path)


def test_names_that_look_like_markup_are_printed_unchanged(odd, fast, cli):
    (odd / "train" / "two words" / "[link]y.jpg").write_bytes(b"none")
    ran = cli("train", odd, *fast, "--name", "[b]run")
    assert ran.code == 0, ran.err
    assert f"fastimg convert {odd} DST" in ran.out and f"{odd}: 25 images" in ran.out
    assert "two words/[link]y.jpg: not an image" in ran.out and "runs/[b]run/best/" in ran.out
    ran = cli("eval", "runs/[b]run", odd)
    assert ran.code == 0, ran.err
    assert f"{odd} (val), 12 images" in ran.out and "runs/[b]run/best/confusion-val.png" in ran.out
    assert all(f" {name} " in ran.out for name in ("[red]x", "[bold]", "two words"))
    file = odd / "val" / "two words" / "[bold]x.jpg"
    ran = cli("predict", "runs/[b]run", file)
    assert ran.code == 0 and f" {file} " in ran.out and "[red]x " in ran.out
    ran = cli("predict", "runs/[b]run", odd / "[i]none")
    assert ran.code == 1 and "[i]none" in ran.out
    ran = cli("convert", odd, "[i]out")
    assert ran.code == 0 and "[i]out" in ran.out and "[link]y.jpg: not an image" in ran.out
    assert sorted(json.loads(Path("[i]out/dataset.json").read_text())["classes"]) == [
        "[bold]",
        "[red]x",
        "two words",
    ]


def test_runs_in_a_folder_with_brackets_are_numbered(odd, fast, cli):
    """Interpreted as a glob, the name would match none of them, and the second output would overwrite the first."""
    data = odd.rename("[a]data")
    assert [cli("train", data, *fast).code for _ in range(2)] == [0, 0]
    assert sorted(os.listdir("runs")) == ["[a]data-test_resnet", "[a]data-test_resnet-2"]


def test_file_names_that_are_not_utf8(trained, tmp_path, cli):
    name = os.fsdecode(b"caf\xe9.jpg")
    good, bad = tmp_path / name, tmp_path / f"bad-{name}"
    shutil.copy(trained.images / "val" / "red" / "0.jpg", good)
    bad.write_bytes(b"none")
    ran = cli("predict", trained.run, good, bad)
    assert ran.code == 1 and "caf\\udce9.jpg" in ran.out and "Traceback" not in ran.err
    ran = cli("predict", trained.run, good, "--json")
    assert ran.code == 0 and json.loads(ran.out)["file"] == str(good)
    ran = cli("predict", trained.run, good, "--csv", tmp_path / "out.csv")
    assert ran.code == 0 and "caf\\udce9.jpg" in (tmp_path / "out.csv").read_text()
    ran = cli("train", tmp_path / f"no-{name}")
    assert ran.code == 1 and "no-caf\\udce9.jpg" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "texts", "sources"),
    [
        (["run", "--text", "a", "--text", "b"], ("a", "b"), ()),
        (["--text", "a", "b", "--topk", "3", "run", "--text=c"], ("a", "b", "c"), ()),
        (["--text=a=b", "run", "--text", "c", "--", "--text"], ("a=b", "c"), ("--text",)),
        (["run", "file", "--topk", "3", "--", "--text", "--text"], (), ("file", "--text", "--text")),
    ],
)
def test_a_list_given_in_parts(arguments, texts, sources):
    parsed = command_line._parse("predict", arguments)
    assert (str(parsed.checkpoint), parsed.text) == ("run", texts)
    assert tuple(map(str, parsed.sources)) == sources


def test_every_argument_of_a_model_counts():
    parsed = command_line._parse("train", ["--model-kwargs", "a=1", "--epochs", "2", "--model-kwargs", "b=2", "c=3"])
    assert parsed.model_kwargs == ("a=1", "b=2", "c=3") and parsed.epochs == 2


@pytest.mark.slow
def test_output_that_does_not_fit_is_one_sentence(python):
    """`fastimg ... > file`, on a disk that is full."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [python, "-m", "fastimg", "recipe", "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1, done.stderr
    assert done.stderr.strip() == (
        "fastimg: error: what is written here does not fit (No space left on device); make room, and start again"
    )

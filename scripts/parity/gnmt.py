"""GNMT: `retired_benchmarks/gnmt` of the references, on the token ids of timetrial and scored by timetrial's BLEU."""

import inspect
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from timetrial.datasets.text.moses_bpe import PAD, UNKNOWN, MosesBPE
from timetrial.datasets.text.prepared_corpus import PreparedCorpus, Tokens
from timetrial.runner.config.schema import Config
from timetrial.scripts.measure.engines import build
from timetrial.workloads.gnmt.data import GNMTData
from timetrial.workloads.gnmt.workload import GNMTWorkload

from . import stubs
from .curves import Recorder, recipe_settings

DEFAULTS = ("workload=gnmt", "recipe=gnmt/mini", "precision=fp32", "recipe.max_epochs=6")

_VALIDATION_PAIRS = 128  # the reference also computes a validation loss, which nothing here reads


def train_reference(config: Config, checkout: Path, seed: int, folder: Path, recorder: Recorder) -> None:
    """Train the reference on files whose words are token ids."""
    import torch

    source = stubs.find_folder(checkout, ["retired_benchmarks/gnmt/pytorch", "rnn_translator/pytorch"])
    training, data = recipe_settings(config)
    corpus, batch = GNMTData._prepare(data), config.recipe.global_batch_size
    _write_corpus(corpus, folder)
    stubs.install_packages()
    schedule = build(config).workload.mlperf_params()  # in updates, whichever unit the recipe has
    options = (
        "--dataset-dir", folder, "--results-dir", folder, "--seed", seed, "--epochs", config.recipe.max_epochs,
        "--hidden-size", training.hidden_size, "--dropout", training.dropout, "--smoothing", training.label_smoothing,
        "--train-batch-size", batch, "--max-length-train", data.max_length, "--lr", training.learning_rate,
        "--warmup-steps", schedule["opt_learning_rate_warmup_steps"],
        "--remain-steps", schedule["opt_learning_rate_remain_steps"],
        "--decay-interval", schedule["opt_learning_rate_decay_interval"], "--decay-steps", training.num_halvings,
        "--grad-clip", config.recipe.max_grad_norm, "--beam-size", training.beam_size,
        "--max-length-test", training.max_decode_length + 1, "--test-batch-size", data.eval_batch_size,
        "--len-norm-factor", training.length_penalty, "--cov-penalty-factor", training.coverage_penalty,
        "--target-bleu", 1000, "--save-freq", 10**9, "--print-freq", 10**9,
    )  # fmt: skip
    with stubs.arguments(source, *options, *([] if torch.cuda.is_available() else ["--no-cuda"])):
        _train(corpus, recorder)


def _write_corpus(corpus: PreparedCorpus, folder: Path) -> None:
    """Write the files of `seq2seq.data.config`, with the word `t<id>` for each token."""
    (folder / "vocabulary").write_text("".join(f"t{token}\n" for token in range(4, corpus.statistics.vocab_size)))
    for side in ("source", "target"):
        tokens = corpus.tokens("train", side)
        _write_sentences(folder / f"train.{side}", tokens, len(tokens))
        _write_sentences(folder / f"validation.{side}", tokens, _VALIDATION_PAIRS)
    test = corpus.tokens("test", "source")
    _write_sentences(folder / "test.source", test, len(test))


def _write_sentences(path: Path, tokens: Tokens, count: int) -> None:
    bounds = tokens.offsets
    lines = (tokens.ids[bounds[number] : bounds[number + 1]].tolist() for number in range(count))
    words = (" ".join("<unk>" if token == UNKNOWN else f"t{token}" for token in line) for line in lines)
    path.write_text("".join(f"{line}\n" for line in words))


def _train(corpus: PreparedCorpus, recorder: Recorder) -> None:
    """Run the reference's training; its steps and its evaluation are observed."""
    import seq2seq.data.config as files  # type: ignore[import-not-found]
    import train  # type: ignore[import-not-found]
    from seq2seq.inference import beam_search, inference  # type: ignore[import-not-found]

    files.VOCAB_FNAME = "vocabulary"
    files.SRC_TRAIN_FNAME, files.TGT_TRAIN_FNAME = "train.source", "train.target"
    files.SRC_VAL_FNAME, files.TGT_VAL_FNAME = "validation.source", "validation.target"
    files.SRC_TEST_FNAME = "test.source"
    _divide_by_whole_numbers(beam_search)
    iterate, translate = train.trainers.Seq2SeqTrainer.iterate, inference.Translator.run
    vocabulary, bleu = MosesBPE.read(corpus.folder / "vocabulary"), GNMTWorkload.build_bleu(corpus.references())

    def observe_step(self: Any, source: Any, target: Any, update: bool = True, training: bool = True) -> Any:
        result = iterate(self, source, target, update, training)
        if update and training:
            recorder.step(result[1])
        return result

    def observe_evaluation(self: Any, *inputs: Any, epoch: int, **options: Any) -> Any:
        result = translate(self, *inputs, epoch=epoch, **options)
        recorder.evaluated(epoch + 1, result[0] / 100)
        return result

    def score(self: Any, path: str, _: Any) -> float:
        lines = Path(path.removesuffix(".detok")).read_text().splitlines()
        hypotheses = [vocabulary.decode(_token_ids(line.split())) for line in lines]
        return 100 * bleu(hypotheses)

    train.trainers.Seq2SeqTrainer.iterate = observe_step
    inference.Translator.run, inference.Translator.run_sacrebleu = observe_evaluation, score
    inference.Translator.run_detokenizer = lambda self, path: None
    train.main()


def _token_ids(words: Sequence[str]) -> list[int]:
    """Return the ids of words that `_write_corpus` wrote."""
    return [int(word[1:]) if word[0] == "t" else {"<unk>": UNKNOWN}.get(word, PAD) for word in words]


def _divide_by_whole_numbers(module: Any) -> None:
    """Let the beam search divide indices as it did when `/` of two integers was an integer."""
    search = module.SequenceGenerator
    code = textwrap.dedent(inspect.getsource(search.beam_search)).replace("index / beam_size", "index // beam_size")
    exec(code, vars(module))
    search.beam_search = vars(module)["beam_search"]

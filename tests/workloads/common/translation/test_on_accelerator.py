"""GNMT and the Transformer on a GPU: gradients of their kernels, and searches in device graphs."""

import itertools

import pytest
import torch

from timetrial.workloads.common.translation import fused_linear_cross_entropy
from timetrial.workloads.common.translation.top_words import top_words

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 2e-3), ("bf16", 0.05), ("fp16", 0.02)])
@pytest.mark.parametrize("overrides", [("workload=gnmt",), ("workload=transformer", "recipe.training.hidden_size=128")])
def test_translation_gradients_equal_those_of_the_cpu(overrides, precision, bound, build_engine, tmp_path):
    """Packed LSTMs, attention's and the loss's kernels against dense float64; dropout is off."""
    device, results = torch.accelerator.current_accelerator(), []
    for target, kind in ((torch.device("cpu"), "fp32"), (torch.device(device.type, 0), precision)):
        choices = [*overrides, "recipe.training.dropout=0", f"precision={kind}", f"data_dir={tmp_path}"]
        engine = build_engine(*choices, device=target)
        wide = engine.model.double() if target.type == "cpu" else engine.model
        (batch,) = next(iter(engine.data.train_batches(1)))
        with engine.precision.autocast():
            loss = engine.workload.compute_loss(wide, batch)
        loss_scale = 1024.0 if kind == "fp16" else 1.0
        (loss * (loss_scale / batch.weight)).backward()
        gradients = {name: weight.grad.double().cpu() / loss_scale for name, weight in wide.named_parameters()}
        results.append((loss.item(), gradients))
    (expected, expected_gradients), (loss, gradients) = results
    assert loss == pytest.approx(expected, rel=5e-3)
    for name, gradient in expected_gradients.items():
        assert (gradients[name] - gradient).norm() <= bound * gradient.norm() + 1e-6, name


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 0.02), (torch.float16, 3e-3)])
def test_fused_cross_entropy_equals_pytorch_in_float64(dtype, bound, monkeypatch):
    """In two and a half chunks, whose gradients for the weights are added."""
    monkeypatch.setattr(fused_linear_cross_entropy, "_LOGITS_PER_CHUNK", 200 * 9016)
    device = torch.accelerator.current_accelerator()
    torch.manual_seed(1)
    hidden, weight = (torch.randn(size, 64, device=device).div(2).requires_grad_() for size in (500, 9016))
    labels = torch.randint(9016, (500,), device=device)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        loss = fused_linear_cross_entropy.fused_linear_cross_entropy(
            hidden, weight, None, labels, target_weight=1.0, smoothing_weight=0.0
        )
    wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    expected = torch.nn.functional.cross_entropy(wide[0] @ wide[1].T, labels, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=bound)
    reference = torch.autograd.grad(expected, wide)
    for mine, other in zip(torch.autograd.grad(loss, (hidden, weight)), reference, strict=True):
        assert (mine - other).norm() < bound * other.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_most_probable_words_equal_those_of_pytorch_in_float64(dtype):
    """Of equal logits, which 16-bit types often have, any may be among the words."""
    logits = torch.randn(64, 9016, device=torch.accelerator.current_accelerator()).mul(3).to(dtype)
    words, probabilities = top_words(logits, 8), logits.double().log_softmax(1)
    torch.testing.assert_close(words.log_probabilities.double(), probabilities.topk(8).values, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(
        words.log_probabilities.double(), probabilities.gather(1, words.ids), rtol=1e-5, atol=2e-5
    )


@pytest.mark.parametrize(
    "overrides",
    [("workload=gnmt", "+recipe.data.pad_to_bucket=true"), ("workload=transformer", "tuning.micro_batch_size=512")],
)
def test_captured_searches_use_the_weights_of_their_time(build_on_accelerator, overrides):
    """The warm-up captures them up to their maximum length, which the untrained weights may not need."""
    captured, eager = (
        build_on_accelerator(
            *overrides, "recipe.training.dropout=0.1", "precision=bf16", f"engine.capture={capture}", warm_up=True
        )
        for capture in ("true", "false")
    )
    shapes = captured.workload._searches._shapes
    num_shapes = len(shapes)
    assert num_shapes
    assert all(shape.parts[-1].search.at_max_length for shape in shapes.values())
    epochs = (captured.data.train_batches(epoch) for epoch in itertools.count(1))
    steps = itertools.chain.from_iterable(epochs)

    def translate(engine):
        engine.model.eval()
        with torch.no_grad(), engine.precision.autocast():
            predictions = engine.workload.predict(engine.model, engine.data.eval_batches()).predictions
        engine.model.train()
        return predictions

    last = None
    for _ in range(4):
        for step in itertools.islice(steps, 100):  # after ten, all translations are still one word
            captured.train_step(step)
        eager.load_state_dict(captured.state_dict())
        found, expected = translate(captured), translate(eager)
        assert expected != last
        equal = sum(one == other for one, other in zip(found, expected, strict=True))
        assert equal >= 0.95 * len(expected)  # products of other algorithms can change the better of two equal beams
        last = expected
    assert len(shapes) == num_shapes
